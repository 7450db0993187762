"""What a scheduler knows of limits, and what its claims take of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from services.mesh.jobs.limits import Limit, key_limit, owner_of, type_limit, type_of_limit
from services.mesh.jobs.model import Claimed
from services.mesh.jobs.type_settings import TypeSettings
from services.scheduler.app.claims import ClaimRules
from services.scheduler.domain.duties import rank_of
from services.scheduler.domain.places import (
    SENT_SECONDS,
    TURN_SECONDS,
    LimitBook,
    Turn,
    limits_of,
)
from tests.unit.scheduler.scheduler_fakes import Bench, FakeShard, job, until

ALL = type_limit("t")
KEY = UUID(int=7)
TWO = TypeSettings("t", max_running=2)
PER_KEY = TypeSettings("t", max_running_per_key=1)


def limited(settings: TypeSettings, key: UUID | None = None) -> Claimed:
    limits = tuple(Limit(*limit) for limit in limits_of(settings, key))
    return replace(job("t"), limits=limits)


def test_names_of_limits_read_back() -> None:
    assert type_of_limit(type_limit("a.b")) == ("a.b", None)
    assert type_of_limit(key_limit("a.b", KEY)) == ("a.b", KEY)
    with pytest.raises(ValueError, match="badly formed"):
        type_of_limit("a/nonsense")


def test_what_is_held_sent_and_reserved_is_not_left() -> None:
    book, one = LimitBook(), limited(TWO)
    assert book.room(TWO, 0) == 2
    book.reserve("t", 2)
    assert book.room(TWO, 0) == 0
    book.sent([one], 0)
    book.release("t", 2)
    assert book.room(TWO, 0) == 1
    # Seen to arrive, it counts once.
    book.took(ALL, "0000001", owner_of(one.id, one.fence))
    assert book.room(TWO, 0) == 1
    assert book.freed(ALL, "0000001") == "t"
    assert book.room(TWO, 0) == 2


def test_what_never_arrives_is_given_up() -> None:
    book = LimitBook()
    book.sent([limited(TWO)], 0)
    before = book.changes("t")
    assert book.next_expiry("t", 0.5) == SENT_SECONDS - 0.5
    assert book.room(TWO, SENT_SECONDS - 0.1) == 1
    assert book.room(TWO, SENT_SECONDS) == 2
    assert book.changes("t") > before
    assert book.next_expiry("t", SENT_SECONDS) is None


def test_of_a_type_with_limits_per_key_alone_it_is_given_up_as_well() -> None:
    book = LimitBook()
    book.sent([limited(PER_KEY, KEY), limited(PER_KEY)], 0)
    before = book.changes("t")
    assert book.room(PER_KEY, SENT_SECONDS) is None
    assert book.changes("t") > before
    assert book.next_expiry("t", SENT_SECONDS) is None, "or the claimer looks again at once, always"


def test_keys_are_counted_by_themselves() -> None:
    settings = TypeSettings("t", max_running=9, max_running_per_key=1)
    book, one = LimitBook(), limited(settings, KEY)
    book.sent([one, limited(settings)], 0)
    assert book.held_keys("t", 0) == {KEY: 1}
    book.took(key_limit("t", KEY), "0000001", owner_of(one.id, one.fence))
    assert book.held_keys("t", 0) == {KEY: 1}
    book.freed(key_limit("t", KEY), "0000001")
    assert book.held_keys("t", 0) == {}


def test_schedulers_take_turns() -> None:
    members = ["a", "b", "c"]
    ranks = {member: rank_of(member, "t", members) for member in members}
    assert sorted(ranks.values()) == [0, 1, 2]
    first, last = min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)
    turn = Turn()
    assert turn.wait("t", first, members, 0) == 0
    turn = Turn()
    assert turn.wait("t", last, members, 0) == 2 * TURN_SECONDS
    assert turn.wait("t", last, members, 2 * TURN_SECONDS) == 0
    turn.over("t")
    assert turn.wait("t", last, members, 5) == pytest.approx(2 * TURN_SECONDS)


# --- with the claimer


def set_limit(bench: Bench, settings: TypeSettings) -> None:
    bench.types.set("t", settings)


async def key_filled(bench: Bench, count: int) -> FakeShard:
    """A shard with so many jobs of one key, of which the one that may run was sent."""
    set_limit(bench, PER_KEY)
    store = bench.stores["s0"]
    store.rows["t"] = store.keyed(KEY, count)
    bench.grab("w1", 50)
    bench.board.found("s0", ["t"])
    await until(lambda: bench.sent() == 1)
    return store


def ended(bench: Bench, sent: Iterator[Claimed]) -> None:
    """A worker has run what it was sent, and given its place back."""
    one = next(sent)
    key = f"{ALL}/{one.id.int % 10**7:07d}"
    bench.places.set(key, owner_of(one.id, one.fence))
    bench.places.set(key, None)


async def test_of_a_limited_type_only_what_is_left_is_claimed() -> None:
    async with Bench("s0", "s1") as bench:
        set_limit(bench, TWO)
        for store in bench.stores.values():
            store.store("t", 10)
        bench.grab("w1", 50)
        bench.board.found("s0", ["t"])
        bench.board.found("s1", ["t"])
        await until(lambda: bench.sent() == 2)
        await bench.passed()
        bench.grab("w1", 48)
        await bench.passed()
        assert bench.sent() == 2
        assert all(job.limits == (Limit(ALL, 2),) for _, jobs in bench.broker.sent for job in jobs)
        # The flags stay: when a place is free there is more to claim, without any nudge.
        ended(bench, iter(bench.broker.sent[0][1]))
        await until(lambda: bench.sent() == 3)


async def test_a_raised_limit_holds_at_once() -> None:
    async with Bench("s0") as bench:
        set_limit(bench, TypeSettings("t", max_running=1))
        bench.stores["s0"].store("t", 10)
        bench.grab("w1", 50)
        bench.board.found("s0", ["t"])
        await until(lambda: bench.sent() == 1)
        bench.grab("w1", 49)
        set_limit(bench, TypeSettings("t", max_running=4))
        await until(lambda: bench.sent() == 4)


async def test_nothing_is_claimed_before_the_limits_are_known() -> None:
    async with Bench("s0") as bench:
        bench.types.synced = False
        bench.stores["s0"].store("t", 1)
        bench.grab("w1", 5)
        bench.board.found("s0", ["t"])
        await bench.passed()
        assert not bench.stores["s0"].claims
        bench.types.synced = True
        bench.claimer.nudge()
        await until(lambda: bench.sent() == 1)


async def test_jobs_whose_keys_are_full_are_left_until_one_ends() -> None:
    async with Bench("s0") as bench:
        store = await key_filled(bench, 3)
        bench.grab("w1", 49)
        await bench.passed()
        claims = len(store.claims)
        await bench.passed()
        # It does not look again and again for what it cannot take.
        assert len(store.claims) == claims
        (one,) = bench.broker.sent[0][1]
        assert one.limits == (Limit(key_limit("t", KEY), 1),)
        key = f"{key_limit('t', KEY)}/0000001"
        bench.places.set(key, owner_of(one.id, one.fence))
        bench.places.set(key, None)
        await until(lambda: bench.sent() == 2)


async def test_a_place_that_is_freed_while_a_claim_is_under_way_is_not_overlooked() -> None:
    async with Bench("s0") as bench:
        store = await key_filled(bench, 2)
        (one,) = bench.broker.sent[0][1]
        key = f"{key_limit('t', KEY)}/0000001"
        bench.places.set(key, owner_of(one.id, one.fence))
        store.open_door.clear()
        claims = len(store.claims)
        bench.board.found("s0", ["t"])
        bench.grab("w1", 49)
        await until(lambda: len(store.claims) == claims + 1)
        bench.places.set(key, None)  # it was told that this key is full
        store.open_door.set()
        await until(lambda: bench.sent() == 2)


async def test_what_is_due_in_a_moment_is_claimed_though_another_key_is_full() -> None:
    async with Bench("s0", rules=ClaimRules(ahead=0.02)) as bench:
        store = await key_filled(bench, 2)
        bench.grab("w1", 49)
        bench.board.found("s0", ["t"])  # by a timer, a moment ahead
        await bench.claimer.claims.more()
        store.rows["t"] += store.keyed(UUID(int=8), 1)
        await until(lambda: bench.sent() == 2)


async def test_nothing_is_claimed_before_it_is_known_what_is_paused() -> None:
    async with Bench("s0") as bench:
        known: list[bool] = []
        bench.board.knows_pauses = lambda: bool(known)
        bench.stores["s0"].store("t", 1)
        bench.grab("w1", 5)
        bench.board.found("s0", ["t"])
        await bench.passed()
        assert not bench.stores["s0"].claims
        bench.board.pause("t")
        known.append(True)
        await bench.passed()
        assert not bench.stores["s0"].claims
        bench.board.resume("t")
        await until(lambda: bench.sent() == 1)


async def test_strange_keys_among_the_places_are_passed_over() -> None:
    async with Bench("s0") as bench:
        bench.places.set("t/strange/1", "who")
        bench.places.set("t/strange/1", None)
        assert bench.bounds.known
