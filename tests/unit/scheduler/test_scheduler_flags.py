"""No due work is ever forgotten: a flag outlives every claim that may have looked too early."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.scheduler.domain.flags import MOST_NUDGES, DueFlags


def test_a_claim_that_saw_the_end_lowers_the_flag() -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=True)
    assert flags.end("t", "s0", flags.begin("t", "s0"), exhausted=True)
    assert flags.types() == []


def test_a_flag_raised_while_a_claim_is_under_way_survives_it() -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=True)
    mark = flags.begin("t", "s0")
    flags.raise_("t", "s0", told=True)
    assert not flags.end("t", "s0", mark, exhausted=True)
    assert flags.is_raised("t", "s0")


def test_a_full_claim_leaves_the_flag_up() -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=True)
    assert not flags.end("t", "s0", flags.begin("t", "s0"), exhausted=False)


def test_a_claimed_shard_goes_to_the_end_of_the_line() -> None:
    flags = DueFlags()
    for shard in ("s0", "s1", "s2"):
        flags.raise_("t", shard, told=True)
    flags.begin("t", "s0")
    assert flags.shards("t") == ["s1", "s2", "s0"]
    flags.raise_("t", "s2", told=True)
    assert flags.shards("t") == ["s1", "s2", "s0"], "raising again costs no place"


def test_only_own_findings_without_credit_are_told_and_only_once() -> None:
    flags = DueFlags()
    flags.raise_("heard", "s0", told=True)
    flags.raise_("found", "s0", told=False)
    flags.raise_("served", "s1", told=False)
    assert flags.untold(lambda type_, shard: type_ == "served") == {("s0", False): ["found"]}
    assert flags.untold(lambda type_, shard: type_ == "served") == {}
    told = flags.untold(lambda type_, shard: False)
    assert told == {("s1", False): ["served"]}, "its credit ran out"


def test_a_nudge_about_an_own_finding_makes_it_known() -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=False)
    flags.raise_("t", "s0", told=True)
    assert flags.untold(lambda type_, shard: False) == {}


def test_that_work_has_been_due_for_long_is_told_with_it() -> None:
    flags = DueFlags()
    flags.raise_("new", "s0", told=False)
    flags.raise_("old", "s0", told=False, long_due=True)
    flags.raise_("old", "s0", told=False)
    told = flags.untold(lambda type_, shard: False)
    assert told == {("s0", False): ["new"], ("s0", True): ["old"]}
    assert flags.untold(lambda type_, shard: False) == {}


def test_a_nudge_that_does_not_say_since_when_leaves_that_to_be_told() -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=False, long_due=True)
    flags.raise_("t", "s0", told=True)
    assert flags.untold(lambda type_, shard: False) == {("s0", True): ["t"]}
    flags.raise_("t", "s0", told=False, long_due=True)
    flags.raise_("t", "s0", told=True, long_due=True)
    assert flags.untold(lambda type_, shard: False) == {}


def test_the_number_of_flags_is_bounded() -> None:
    flags = DueFlags(most=2)
    for type_ in ("a", "b", "c"):
        flags.raise_(type_, "s0", told=False)
    assert flags.types() == ["b", "c"]
    assert flags.untold(lambda type_, shard: False) == {("s0", False): ["b", "c"]}


def test_a_forgotten_flag_that_is_raised_again_survives_the_claim_that_began_before() -> None:
    flags = DueFlags(most=1)
    flags.raise_("a", "s0", told=True)
    mark = flags.begin("a", "s0")
    flags.raise_("b", "s0", told=True)
    flags.raise_("a", "s0", told=True)
    assert not flags.end("a", "s0", mark, exhausted=True)


def test_work_that_another_scheduler_took_lowers_the_flag() -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=True, nudge=7)
    flags.raise_("t", "s0", told=True, nudge=8)
    flags.served("t", "s1", [7, 8])
    flags.served("t", "s0", [7])
    assert flags.is_raised("t", "s0"), "the other one may have looked before it heard the second"
    flags.served("t", "s0", [8, 9])
    assert flags.types() == []


@pytest.mark.parametrize(
    ("told", "long_due", "nudge"), [(True, False, 0), (False, False, 0), (True, True, 8)]
)
def test_what_was_raised_by_more_than_new_work_is_looked_at_here(
    told: bool, long_due: bool, nudge: int
) -> None:
    flags = DueFlags()
    flags.raise_("t", "s0", told=True, nudge=7)
    flags.raise_("t", "s0", told=told, long_due=long_due, nudge=nudge)
    flags.served("t", "s0", [7, 8])
    assert flags.is_raised("t", "s0")
    assert flags.nudges("t", "s0") == frozenset()


def test_of_a_stream_of_nudges_none_is_remembered() -> None:
    flags = DueFlags()
    for nudge in range(1, MOST_NUDGES + 2):
        flags.raise_("t", "s0", told=True, nudge=nudge)
    flags.served("t", "s0", range(1, MOST_NUDGES + 2))
    assert flags.is_raised("t", "s0")


def test_a_flag_knows_since_when_it_is_up() -> None:
    now = 1.0
    flags = DueFlags(now=lambda: now)
    flags.raise_("t", "s0", told=True, nudge=7)
    now = 2.0
    flags.raise_("t", "s0", told=True, nudge=8)
    assert flags.since("t", "s0") == 1.0
    flags.served("t", "s0", [7, 8])
    flags.raise_("t", "s0", told=True, nudge=9)
    assert flags.since("t", "s0") == 2.0


class FlagMachine(RuleBasedStateMachine):
    """A shard with rows, nudges after each insert, claims that look at some moment in between.

    The rule that must hold: rows that no claim in flight can still take have a raised flag.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flags = DueFlags()
        self.rows = 0
        self.unheard = 0
        self.mark: int | None = None
        self.seen: tuple[int, int] | None = None

    @rule(count=st.integers(1, 3))
    def insert_commits(self, count: int) -> None:
        self.rows += count
        self.unheard += 1

    @precondition(lambda self: self.unheard)
    @rule()
    def nudge_arrives(self) -> None:
        self.unheard -= 1
        self.flags.raise_("t", "s", told=True)

    @precondition(lambda self: self.mark is None and self.flags.is_raised("t", "s"))
    @rule()
    def claim_is_sent(self) -> None:
        self.mark = self.flags.begin("t", "s")

    @precondition(lambda self: self.mark is not None and self.seen is None)
    @rule(limit=st.integers(1, 4))
    def claim_commits(self, limit: int) -> None:
        taken = min(limit, self.rows)
        self.rows -= taken
        self.seen = (taken, limit)

    @precondition(lambda self: self.seen is not None)
    @rule()
    def claim_is_answered(self) -> None:
        assert self.mark is not None
        assert self.seen is not None
        taken, limit = self.seen
        self.flags.end("t", "s", self.mark, exhausted=taken < limit)
        self.mark = self.seen = None

    @precondition(lambda self: self.mark is not None and self.seen is None)
    @rule()
    def claim_fails(self) -> None:
        assert self.mark is not None
        self.flags.end("t", "s", self.mark, exhausted=False)
        self.mark = None

    @invariant()
    def rows_are_never_without_a_flag(self) -> None:
        if self.rows and not self.unheard:
            assert self.flags.is_raised("t", "s")


FlagMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestFlagMachine = FlagMachine.TestCase


@dataclass
class Asking:
    """A claim under way: what it began with, and what it has locked."""

    mark: int
    nudges: frozenset[int]
    limit: int
    locked: int | None = None
    """None: it has not looked yet."""


@dataclass
class Hearer:
    """One of two schedulers, with messages that have not reached it."""

    flags: DueFlags = field(default_factory=DueFlags)
    unheard: list[int] = field(default_factory=list)
    words: list[frozenset[int]] = field(default_factory=list)
    asking: Asking | None = None


WHO = st.integers(0, 1)


class TwoSchedulers(RuleBasedStateMachine):
    """Two schedulers that claim from one shard, pass over what the other has locked, and tell each
    other what they have served. Messages reach each of them in any order; claims may fail.

    The rule that must hold: of rows that nobody has locked, and all have heard of, one of the two
    knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.both = (Hearer(), Hearer())
        self.rows = self.nudges = 0

    @rule(count=st.integers(1, 3))
    def insert_commits(self, count: int) -> None:
        self.rows += count
        self.nudges += 1
        for hearer in self.both:
            hearer.unheard.append(self.nudges)

    @rule(who=WHO, which=st.integers(0, 9))
    def nudge_arrives(self, who: int, which: int) -> None:
        hearer = self.both[who]
        if hearer.unheard:
            nudge = hearer.unheard.pop(which % len(hearer.unheard))
            hearer.flags.raise_("t", "s", told=True, nudge=nudge)

    @rule(who=WHO, limit=st.integers(1, 4))
    def claim_is_sent(self, who: int, limit: int) -> None:
        hearer = self.both[who]
        if hearer.asking is None and hearer.flags.is_raised("t", "s"):
            nudges = hearer.flags.nudges("t", "s")
            hearer.asking = Asking(hearer.flags.begin("t", "s"), nudges, limit)

    @rule(who=WHO)
    def claim_looks(self, who: int) -> None:
        asking = self.both[who].asking
        if asking is not None and asking.locked is None:
            asking.locked = min(asking.limit, self.rows)
            self.rows -= asking.locked

    @rule(who=WHO)
    def claim_is_answered(self, who: int) -> None:
        asking = self.both[who].asking
        if asking is not None and asking.locked is not None:
            exhausted = asking.locked < asking.limit
            self._end(who, asking, exhausted=exhausted)
            if exhausted and asking.locked >= len(asking.nudges):
                self.both[1 - who].words.append(asking.nudges)

    @rule(who=WHO)
    def claim_fails(self, who: int) -> None:
        asking = self.both[who].asking
        if asking is not None:
            self.rows += asking.locked or 0
            self._end(who, asking, exhausted=False)

    @rule(who=WHO, which=st.integers(0, 9))
    def word_arrives(self, who: int, which: int) -> None:
        hearer = self.both[who]
        if hearer.words:
            word = hearer.words.pop(which % len(hearer.words))
            if hearer.asking is None:
                hearer.flags.served("t", "s", word)

    @invariant()
    def rows_are_never_unknown_to_both(self) -> None:
        if self.rows and not any(hearer.unheard or hearer.asking for hearer in self.both):
            assert any(hearer.flags.is_raised("t", "s") for hearer in self.both)

    def _end(self, who: int, asking: Asking, *, exhausted: bool) -> None:
        hearer, nudges = self.both[who], asking.nudges
        hearer.asking = None
        hearer.flags.end("t", "s", asking.mark, exhausted=exhausted, nudges=nudges)


TwoSchedulers.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestTwoSchedulers = TwoSchedulers.TestCase
