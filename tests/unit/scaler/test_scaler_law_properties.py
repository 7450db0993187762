"""What the law keeps to whatever happens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import cycle, islice, pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st

from services.scaler.domain.ceiling import Limit
from services.scaler.domain.crashes import CLEAN, CrashRecord
from services.scaler.domain.fleet import Fleet
from services.scaler.domain.law import Sight, Standing, decide
from services.scaler.domain.load import Load, LoadReport
from services.scaler.domain.pool import Hold, PoolSpec

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def spans(most: float) -> st.SearchStrategy[timedelta]:
    return st.floats(0, most).map(lambda seconds: timedelta(seconds=seconds))


@st.composite
def specs(draw: st.DrawFn) -> PoolSpec:
    least = draw(st.integers(0, 5))
    return PoolSpec(
        type="t",
        min_workers=least,
        max_workers=draw(st.integers(max(1, least), 50)),
        target_backlog_per_worker=draw(st.integers(1, 200)),
        high_alarm_backlog=draw(st.integers(1, 50)),
        empty_for=draw(spans(20)),
        cooldown=draw(spans(20)),
    )


loads = st.builds(
    Load,
    backlog=st.one_of(st.just(0), st.integers(0, 10_000)),
    in_flight=st.one_of(st.just(0), st.integers(0, 1_000)),
    oldest_age=spans(100),
    next_due=st.one_of(st.none(), spans(120).map(lambda span: NOON + span)),
    capped=st.booleans(),
)
fleets = st.builds(Fleet, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
standings = st.builds(
    Standing,
    desired=st.integers(0, 60),
    surplus_since=st.one_of(st.none(), spans(120).map(lambda span: NOON - span)),
    surplus_peak=st.integers(0, 5),
    empty_since=st.one_of(st.none(), spans(120).map(lambda span: NOON - span)),
)
crashes = st.one_of(st.just(CLEAN), st.builds(CrashRecord, st.integers(1, 9), st.just(NOON)))
missing = st.sampled_from([(), ("s1",)])


def sight(
    now: datetime,
    load: Load | None,
    *,
    shards: tuple[str, ...] = (),
    fleet: Fleet | None = None,
    hold: Hold | None = None,
    record: CrashRecord = CLEAN,
) -> Sight:
    report = None if load is None else LoadReport(now, {"t": load}, shards)
    return Sight(now=now, report=report, fleet=fleet or Fleet(), hold=hold, crashes=record)


@given(specs(), st.one_of(st.none(), loads), missing, fleets, standings, crashes)
def test_desired_stays_within_the_bounds(
    spec: PoolSpec,
    load: Load | None,
    shards: tuple[str, ...],
    fleet: Fleet,
    standing: Standing,
    record: CrashRecord,
) -> None:
    outcome = decide(spec, sight(NOON, load, shards=shards, fleet=fleet, record=record), standing)
    assert spec.min_workers <= outcome.decision.desired <= spec.max_workers
    assert outcome.decision.explanation
    assert outcome.recheck_at is None or outcome.recheck_at > NOON


@given(specs(), loads, standings, st.integers(0, 100))
def test_hold_is_obeyed_up_to_the_maximum(
    spec: PoolSpec, load: Load, standing: Standing, fixed: int
) -> None:
    outcome = decide(spec, sight(NOON, load, hold=Hold(fixed)), standing)
    assert outcome.decision.desired == min(fixed, spec.max_workers)


@given(specs(), loads, st.integers(0, 10_000), standings, missing)
@example(
    PoolSpec(type="t", max_workers=1, target_backlog_per_worker=1, high_alarm_backlog=2),
    Load(next_due=NOON),
    1,
    Standing(),
    (),
)
def test_more_backlog_never_means_fewer_workers(
    spec: PoolSpec, load: Load, more: int, standing: Standing, shards: tuple[str, ...]
) -> None:
    heavier = Load(load.backlog + more, load.in_flight, load.oldest_age, load.next_due, load.capped)
    low = decide(spec, sight(NOON, load, shards=shards), standing).decision.desired
    high = decide(spec, sight(NOON, heavier, shards=shards), standing).decision.desired
    assert low <= high


def run(spec: PoolSpec, series: list[Load], standing: Standing, step: timedelta) -> list[int]:
    """The desired count after each look."""
    counts, now = [], NOON
    for load in series:
        outcome = decide(spec, sight(now, load), standing)
        standing = outcome.standing
        counts.append(outcome.decision.desired)
        now += step
    return counts


def turns(counts: list[int]) -> int:
    """How often the count changed direction."""
    moves = [b - a for a, b in pairwise(counts) if a != b]
    return sum(1 for a, b in pairwise(moves) if (a > 0) != (b > 0))


calm = st.builds(
    Load, backlog=st.integers(0, 5_000), in_flight=st.integers(0, 100), oldest_age=spans(5)
)


@given(specs(), calm, standings)
def test_constant_load_moves_the_count_in_one_direction_only(
    spec: PoolSpec, load: Load, standing: Standing
) -> None:
    counts = run(spec, [load] * 70, standing, timedelta(seconds=1))
    assert turns([spec.clamp(standing.desired), *counts]) == 0
    assert counts[-1] == counts[-2]


@given(specs(), calm, calm, st.integers(1, 5))
def test_load_that_swings_within_the_cooldown_does_not_flap(
    spec: PoolSpec, one: Load, other: Load, period: int
) -> None:
    assume(spec.cooldown > timedelta(seconds=0.1))
    step = spec.cooldown / (2 * period)
    swing = [one] * period + [other] * period
    counts = run(spec, list(islice(cycle(swing), 60)), Standing(), step)
    assert counts == sorted(counts), "it only ever grew"


@given(specs(), standings)
def test_pool_at_rest_ends_at_its_minimum(spec: PoolSpec, standing: Standing) -> None:
    counts = run(spec, [Load()] * 70, standing, timedelta(seconds=1))
    assert counts[-1] == spec.min_workers


@given(specs(), st.one_of(st.none(), loads), standings, spans(3600))
def test_old_statistics_never_shrink_a_pool(
    spec: PoolSpec, load: Load | None, standing: Standing, age: timedelta
) -> None:
    report = None if load is None else LoadReport(NOON - age, {"t": load})
    look = Sight(now=NOON, report=report, stale_after=timedelta(seconds=0.0))
    desired = decide(spec, look, standing).decision.desired
    if load is None or age > timedelta():
        assert desired == spec.clamp(standing.desired)


@given(specs(), loads, standings)
def test_statistics_without_a_shard_never_shrink_a_pool(
    spec: PoolSpec, load: Load, standing: Standing
) -> None:
    outcome = decide(spec, sight(NOON, load, shards=("s1",)), standing)
    assert outcome.decision.desired >= spec.clamp(standing.desired)


@given(specs(), loads, standings)
def test_count_never_falls_below_what_the_work_in_hand_needs(
    spec: PoolSpec, load: Load, standing: Standing
) -> None:
    desired = decide(spec, sight(NOON, load), standing).decision.desired
    needed = spec.clamp(spec.workers_for(load.jobs))
    assert desired >= min(spec.clamp(standing.desired), needed)


@given(specs(), calm, standings)
def test_recheck_misses_nothing(spec: PoolSpec, load: Load, standing: Standing) -> None:
    """Between a look and its recheck the same report leads to the same count."""
    report = LoadReport(NOON, {"t": load})
    settled = decide(spec, Sight(now=NOON, report=report), standing).standing
    first = decide(spec, Sight(now=NOON, report=report), settled)
    assume(first.decision.desired == settled.desired)
    end = min(first.recheck_at or NOON + timedelta(seconds=14), NOON + timedelta(seconds=14))
    between = NOON + (end - NOON) * 0.9
    second = decide(spec, Sight(now=between, report=report), first.standing)
    assert second.decision.desired == first.decision.desired


@given(specs(), loads, standings, st.integers(1, 100), st.integers(0, 20))
def test_no_pool_grows_beyond_what_the_limit_can_use(
    spec: PoolSpec, load: Load, standing: Standing, at_once: int, room: int
) -> None:
    limit = Limit(at_once, room)
    sight = Sight(now=NOON, report=LoadReport(NOON, {"t": load}), limit=limit)
    desired = decide(spec, sight, standing).decision.desired
    before = spec.clamp(standing.desired)
    assert desired <= max(before, spec.min_workers, limit.workers(load.in_flight))
    free = decide(spec, Sight(now=NOON, report=LoadReport(NOON, {"t": load})), standing)
    assert desired <= max(before, free.decision.desired)
