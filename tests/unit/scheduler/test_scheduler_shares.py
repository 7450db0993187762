"""What a backlog leaves to live work, and high priorities to low ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.shares import NOTHING, Aside, Share, ShareRules

LATELY = Aside(recent=10.0)
RULES = ShareRules(lately=10, one_in=4, lower_in=8, rest=4)


def nexts(share: Share, count: int) -> list[Aside]:
    return [share.next(0.0) for _ in range(count)]


def test_a_type_that_is_neither_behind_nor_crowded_looks_at_everything() -> None:
    share = Share(RULES)
    for waited, lowest, full in ((0.0, 0, True), (3600.0, 9, False), (9.0, 0, True)):
        share.ended(waited, lowest, "", full=full)
        assert nexts(share, 64) == [NOTHING] * 64


def test_of_a_type_that_is_behind_every_fourth_claim_is_for_live_work() -> None:
    share = Share(RULES)
    share.ended(11.0, 0, "", full=True)
    assert nexts(share, 8) == [NOTHING, NOTHING, NOTHING, LATELY] * 2
    share.ended(11.0, 0, "", full=False)
    assert nexts(share, 8) == [NOTHING] * 8


def test_while_claims_are_full_of_a_priority_every_eighth_begins_below_it() -> None:
    share = Share(RULES)
    share.ended(0.0, 9, "", full=True)
    assert nexts(share, 8) == [NOTHING] * 7 + [Aside(below=9)]
    share.went_below(10, 5, full=True)
    assert nexts(share, 8)[-1] == Aside(below=5), "full of fives: what is below those is next"
    share.went_below(3, 1, full=False)
    assert nexts(share, 8)[-1] == Aside(below=9), "all of those had their share: from the top again"


def test_looking_below_in_vain_is_rare() -> None:
    share = Share(RULES)
    share.ended(0.0, 9, "", full=True)
    nexts(share, 8)
    share.went_below(0, 0, full=False)
    asked = nexts(share, 64)
    assert asked.count(Aside(below=9)) == 2
    share.went_below(1, 0, full=False)
    assert nexts(share, 64).count(Aside(below=9)) == 8


def test_a_backlog_of_high_priority_leaves_a_share_to_both() -> None:
    share = Share(RULES)
    share.ended(3600.0, 7, "", full=True)
    asked = nexts(share, 16)
    assert (asked.count(LATELY), asked.count(Aside(below=7))) == (2, 2)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6, unique=True), st.integers(1, 50))
def test_every_priority_moves_on_whatever_is_above_it(levels: list[int], limit: int) -> None:
    share = Share(RULES)
    taken = dict.fromkeys(levels, 0)
    # Without end there is work of every priority, so each claim is full of the highest it looks at.
    for _ in range(8 * len(levels) * 2):
        aside = share.next(0.0)
        below = 10 if aside.below is None else aside.below
        lower = [level for level in levels if level < below]
        found = max(lower, default=None)
        if found is not None:
            taken[found] += limit
        if aside.below is None:
            share.ended(0.0, found or 0, "", full=True)
        else:
            share.went_below(limit if lower else 0, found or 0, full=bool(lower))
    assert all(taken.values()), taken
    assert max(taken, key=lambda level: taken[level]) == max(levels)
