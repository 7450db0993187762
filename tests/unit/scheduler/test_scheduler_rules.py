"""Pace, gates, duties and batch limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.app.shards import PROBE_BACKOFF
from services.scheduler.domain.duties import duties_of, keeper_of
from services.scheduler.domain.gate import Gate
from services.scheduler.domain.limits import BatchLimits
from services.scheduler.domain.pace import Pace, PaceRules
from services.scheduler.domain.rereading import Rereading, RereadRules

MEMBERS = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=6)
SHARDS = st.sets(st.text("xyz0123456789", min_size=1, max_size=6), max_size=12)


def claim(pace: Pace, at: float, took: float, brought: int, asked: int = 500) -> float:
    pace.began(at)
    pace.ended(at + took, brought, asked)
    return at + took


def test_the_first_claim_goes_at_once() -> None:
    assert Pace(PaceRules()).wait(0.0) == 0.0


def test_a_claim_that_brought_little_is_followed_at_a_distance() -> None:
    pace = Pace(PaceRules())
    now = claim(pace, 0.0, 0.003, brought=3)
    assert pace.wait(now) == pytest.approx(0.003)
    assert pace.wait(0.006) == 0.0


def test_after_a_rest_a_claim_goes_at_once() -> None:
    pace = Pace(PaceRules())
    now = claim(pace, 0.0, 0.001, brought=1)
    assert pace.wait(now + 0.02) == 0.0


@pytest.mark.parametrize(("brought", "asked"), [(500, 500), (7, 7), (100, 500)])
def test_a_claim_that_was_worth_it_is_followed_at_once(brought: int, asked: int) -> None:
    pace = Pace(PaceRules())
    now = claim(pace, 0.0, 0.01, brought, asked)
    assert pace.wait(now) == 0.0


def test_the_distance_grows_with_how_long_claims_take_and_is_bounded() -> None:
    pace, now = Pace(PaceRules()), 0.0
    for _ in range(20):
        now = claim(pace, now, 0.010, brought=1)
    assert pace.distance == pytest.approx(0.020)
    for _ in range(20):
        now = claim(pace, now, 1.0, brought=1)
    assert pace.distance == 0.025


def test_the_first_reading_out_of_turn_goes_at_once() -> None:
    assert Rereading(RereadRules()).wait(5.0) == 0.0


def test_readings_that_find_nothing_keep_a_growing_and_bounded_distance() -> None:
    rereading, now, waits = Rereading(RereadRules()), 0.0, []
    for _ in range(8):
        wait = rereading.wait(now)
        waits.append(round(wait, 3))
        now += wait
        rereading.began(now)
        rereading.ended(0)
    assert waits == [0.0, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5]


def test_a_reading_that_finds_something_or_a_rest_starts_over() -> None:
    rereading = Rereading(RereadRules())
    for at in range(5):
        rereading.wait(at / 10)
        rereading.began(at / 10)
        rereading.ended(0)
    rereading.ended(1)
    assert rereading.wait(0.41) == pytest.approx(0.01)
    for _ in range(5):
        rereading.ended(0)
    assert rereading.wait(3.0) == 0.0


def test_a_gate_is_closed_until_the_first_answer() -> None:
    gate = Gate()
    assert not gate.open
    assert gate.error == "not reached yet"
    assert gate.answered()
    assert gate.open
    assert gate.error == ""
    assert not gate.answered(), "it was open already"


def test_a_gate_closes_with_the_first_failure_and_opens_with_the_next_answer() -> None:
    gate = Gate()
    gate.answered()
    assert gate.failed("away")
    assert not gate.open
    assert not gate.failed("still away")
    assert gate.error == "still away"
    assert gate.answered()


def test_a_shard_that_is_away_for_however_long_is_asked_twice_a_second() -> None:
    assert PROBE_BACKOFF.delay(1000, lambda: 1.0) <= 0.5


@given(shards=SHARDS, members=MEMBERS)
def test_every_shard_has_exactly_one_keeper(shards: set[str], members: set[str]) -> None:
    kept = [shard for member in members for shard in duties_of(member, shards, members)]
    assert sorted(kept) == sorted(shards)


@given(shards=SHARDS, members=MEMBERS, data=st.data())
def test_a_member_that_goes_moves_only_its_own_shards(
    shards: set[str], members: set[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    for shard in shards:
        if keeper_of(shard, members) != gone:
            assert keeper_of(shard, members - {gone}) == keeper_of(shard, members)


def test_without_members_nobody_keeps_a_shard() -> None:
    assert keeper_of("s0", ()) is None
    assert duties_of("a", ["s0"], ()) == frozenset()


def test_a_claim_is_bounded_by_credit_and_by_the_most() -> None:
    limits = BatchLimits(most=500, message_bytes=1_000_000)
    assert limits.limit("t", 20) == 20
    assert limits.limit("t", 9_999) == 500


def test_heavy_jobs_make_smaller_batches_and_never_none() -> None:
    limits = BatchLimits(most=500, message_bytes=1_000_000)
    limits.weighed("t", jobs=2, size=100_000)
    assert limits.limit("t", 500) == 20
    limits.weighed("t", jobs=1, size=5_000_000)
    assert limits.limit("t", 500) == 1
    assert limits.limit("light", 500) == 500


def test_batches_grow_again_when_jobs_get_lighter() -> None:
    limits = BatchLimits(most=500, message_bytes=1_000_000)
    limits.weighed("t", jobs=1, size=500_000)
    for _ in range(100):
        limits.weighed("t", jobs=100, size=20_000)
    assert limits.limit("t", 500) == 500
