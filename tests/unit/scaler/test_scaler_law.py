"""The law of the Scaler, case by case."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from services.scaler.domain.ceiling import Limit
from services.scaler.domain.crashes import CLEAN, CrashRecord
from services.scaler.domain.decision import Decision, Reason
from services.scaler.domain.fleet import Fleet
from services.scaler.domain.law import Outcome, Sight, Standing, decide
from services.scaler.domain.load import Load, LoadReport
from services.scaler.domain.pool import Hold, PoolSpec

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(type="render", max_workers=5, target_backlog_per_worker=10)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


@dataclass
class Pool:
    """A pool under the law, with a clock that is moved by hand."""

    spec: PoolSpec = SPEC
    now: datetime = NOON
    standing: Standing = field(default_factory=Standing)
    hold: Hold | None = None
    crashes: CrashRecord = CLEAN
    fleet: Fleet = field(default_factory=Fleet)
    limit: Limit | None = None
    worked_at: datetime | None = None
    paused: bool = False

    def look(
        self, load: Load | None = None, *, after: float = 0, missing: tuple[str, ...] = ()
    ) -> Outcome:
        """Move the clock, then decide on statistics that just came (None: they stopped)."""
        self.now += seconds(after)
        report = None if load is None else LoadReport(self.now, {self.spec.type: load}, missing)
        return self.judge(report)

    def judge(self, report: LoadReport | None) -> Outcome:
        sight = Sight(
            now=self.now,
            report=report,
            fleet=self.fleet,
            hold=self.hold,
            crashes=self.crashes,
            limit=self.limit,
            worked_at=self.worked_at,
            paused=self.paused,
        )
        outcome = decide(self.spec, sight, self.standing)
        self.standing = outcome.standing
        return outcome

    def desired(self, load: Load | None = None, *, after: float = 0) -> int:
        return self.look(load, after=after).decision.desired


def jobs(backlog: int, in_flight: int = 0, age: float = 0) -> Load:
    return Load(backlog=backlog, in_flight=in_flight, oldest_age=seconds(age))


IDLE = Load()


@pytest.mark.parametrize(
    ("standing", "load", "desired", "reason"),
    [
        (0, IDLE, 0, Reason.AT_REST),
        (0, jobs(1), 1, Reason.BACKLOG),
        (0, jobs(10), 1, Reason.BACKLOG),
        (0, jobs(11), 2, Reason.BACKLOG),
        (0, jobs(50), 5, Reason.BACKLOG),
        (0, jobs(51), 5, Reason.AT_MAX),
        (5, jobs(5000), 5, Reason.AT_MAX),
        (2, jobs(15), 2, Reason.STEADY),
        (1, jobs(5, in_flight=20), 3, Reason.BACKLOG),
        (1, jobs(0, in_flight=20), 1, Reason.STEADY),
        (3, jobs(5), 3, Reason.COOLDOWN),
        (3, IDLE, 3, Reason.COOLDOWN),
    ],
)
def test_first_look(standing: int, load: Load, desired: int, reason: Reason) -> None:
    decision = Pool(standing=Standing(desired=standing)).look(load).decision
    assert (decision.desired, decision.reason) == (desired, reason)


def test_decision_tells_the_numbers_it_was_made_from() -> None:
    decision = Pool().look(jobs(35, in_flight=4, age=2)).decision
    assert decision == Decision(
        desired=4,
        previous=0,
        reason=Reason.BACKLOG,
        explanation="35 waiting and 4 in hand, at 10 per worker, need 4 workers",
        time=NOON,
        backlog=35,
        in_flight=4,
        oldest_age=seconds(2),
    )


@pytest.mark.parametrize(
    ("limit", "load", "desired", "reason"),
    [
        (Limit(2, room=1), jobs(500), 2, Reason.LIMITED),
        (Limit(2, room=8), jobs(500), 1, Reason.LIMITED),
        (Limit(9, room=4), jobs(500), 3, Reason.LIMITED),
        # Nobody has said how much a worker takes: one is started to hear it.
        (Limit(9), jobs(500), 1, Reason.LIMITED),
        (Limit(2, room=1), jobs(15), 2, Reason.BACKLOG),
        (Limit(100, room=1), jobs(500), 5, Reason.AT_MAX),
        (Limit(2, room=1), IDLE, 0, Reason.AT_REST),
        # Lowered while more ran: these keep their workers.
        (Limit(1, room=1), jobs(50, in_flight=3), 3, Reason.LIMITED),
    ],
)
def test_a_limit_is_a_ceiling(limit: Limit, load: Load, desired: int, reason: Reason) -> None:
    decision = Pool(limit=limit).look(load).decision
    assert (decision.desired, decision.reason) == (desired, reason)


@pytest.mark.parametrize(
    ("standing", "load", "desired", "reason"),
    [
        (0, jobs(500, age=100), 0, Reason.PAUSED),
        (0, Load(next_due=NOON), 0, Reason.PAUSED),
        (0, IDLE, 0, Reason.PAUSED),
        # What is in hand keeps its workers.
        (2, jobs(500, in_flight=15), 2, Reason.PAUSED),
        (4, jobs(500, in_flight=15), 4, Reason.COOLDOWN),
    ],
)
def test_of_a_paused_type_only_what_is_in_hand_counts(
    standing: int, load: Load, desired: int, reason: Reason
) -> None:
    pool = Pool(standing=Standing(desired=standing), paused=True)
    decision = pool.look(load).decision
    assert (decision.desired, decision.reason) == (desired, reason)
    assert decision.explanation.startswith("the type is paused")
    assert decision.backlog == load.backlog, "what waits is told all the same"


def test_a_paused_type_ends_at_its_minimum_and_grows_at_once_when_resumed() -> None:
    pool, capped = Pool(), replace(jobs(500, in_flight=20), capped=True)
    assert pool.desired(capped) == 5
    pool.paused = True
    assert pool.desired(capped) == 5
    assert pool.desired(capped, after=10) == 2
    idle = replace(capped, in_flight=0)
    assert pool.desired(idle, after=1) == 2
    assert pool.desired(idle, after=10) == 0
    assert pool.look(idle, after=1).decision.explanation == (
        "the type is paused, so 500+ waiting jobs do not count. Without them: "
        "nothing is due and nothing in hand: the pool rests at its minimum of 0"
    )
    pool.paused = False
    assert pool.desired(idle) == 5


def test_a_hold_and_old_statistics_go_before_a_pause() -> None:
    pool = Pool(standing=Standing(desired=3), paused=True)
    assert pool.look(jobs(5), missing=("s1",)).decision.reason is Reason.STALE_STATS
    assert pool.look().decision.desired == 3
    pool.hold = Hold(4)
    assert pool.look(jobs(5)).decision.explanation.startswith("an operator")


def test_a_limit_says_why_no_more_workers_come() -> None:
    decision = Pool(limit=Limit(2, room=1)).look(jobs(35)).decision
    assert decision.explanation == (
        "35 waiting and 0 in hand, at 10 per worker, need 4 workers; "
        "the type's limit of 2 at once can use 2"
    )


def test_a_limit_that_is_set_lets_workers_go_after_the_cooldown_down_to_the_minimum() -> None:
    pool = Pool(replace(SPEC, min_workers=3), limit=None)
    assert pool.desired(jobs(500)) == 5
    pool.limit = Limit(1, room=1)
    assert pool.desired(jobs(500), after=1) == 5
    assert pool.desired(jobs(500), after=10) == 3


def test_growing_waits_for_nothing() -> None:
    pool = Pool()
    assert pool.desired(jobs(1)) == 1
    assert pool.desired(jobs(30), after=0.01) == 3


def test_small_backlog_grows_the_pool_once_it_has_waited_for_a_cooldown() -> None:
    pool = Pool(replace(SPEC, high_alarm_backlog=100))
    first = pool.look(jobs(3, age=0))
    assert (first.decision.desired, first.decision.reason) == (0, Reason.STEADY)
    assert first.recheck_at == NOON + SPEC.cooldown
    assert pool.desired(jobs(3, age=9.9), after=9.9) == 0
    assert pool.desired(jobs(3, age=10), after=0.1) == 1


def test_shrinks_to_the_highest_need_of_the_cooldown() -> None:
    pool = Pool(standing=Standing(desired=5))
    assert pool.desired(jobs(0, in_flight=15)) == 5
    assert pool.desired(jobs(0, in_flight=25), after=5) == 5
    outcome = pool.look(jobs(0, in_flight=5), after=5)
    assert (outcome.decision.desired, outcome.decision.reason) == (3, Reason.SCALE_IN)


def test_need_that_comes_back_restarts_the_cooldown() -> None:
    pool = Pool(standing=Standing(desired=3))
    pool.look(jobs(5))
    pool.look(jobs(30), after=9)
    assert pool.desired(jobs(5), after=2) == 3
    assert pool.desired(jobs(5), after=9.9) == 3
    assert pool.desired(jobs(5), after=0.1) == 1


def test_second_step_down_waits_for_a_cooldown_of_its_own() -> None:
    pool = Pool(standing=Standing(desired=5))
    pool.look(jobs(25))
    assert pool.desired(jobs(15), after=10) == 3
    assert pool.desired(jobs(15), after=9.9) == 3
    assert pool.desired(jobs(15), after=10) == 2


def test_work_in_hand_keeps_the_last_worker_however_long_it_takes() -> None:
    pool = Pool(standing=Standing(desired=1))
    for _ in range(100):
        assert pool.desired(jobs(0, in_flight=1), after=60) == 1


def test_empty_pool_goes_to_its_minimum_when_the_alarm_rings() -> None:
    pool = Pool(replace(SPEC, empty_for=seconds(20)), standing=Standing(desired=4))
    pool.look(IDLE)
    shrunk = pool.look(IDLE, after=10)
    assert (shrunk.decision.desired, shrunk.decision.reason) == (1, Reason.SCALE_IN)
    before = pool.look(IDLE, after=9.9)
    assert (before.decision.desired, before.decision.reason) == (1, Reason.COOLDOWN)
    assert [alarm.ringing for alarm in before.standing.alarms] == [False, False]
    assert pool.desired(IDLE, after=0.1) == 1, "the alarm rings, but the cooldown is not over"
    rung = pool.look(IDLE, after=9.9)
    assert (rung.decision.desired, rung.decision.reason) == (0, Reason.EMPTY)
    assert [alarm.ringing for alarm in rung.standing.alarms] == [False, True]
    assert pool.look(IDLE, after=1).decision.reason is Reason.AT_REST


def test_empty_pool_goes_from_many_workers_to_none_at_once() -> None:
    pool = Pool(standing=Standing(desired=4))
    pool.look(IDLE)
    assert pool.desired(IDLE, after=9.9) == 4
    assert pool.desired(IDLE, after=0.1) == 0


def test_recheck_comes_exactly_when_the_empty_alarm_would_ring() -> None:
    pool = Pool(replace(SPEC, cooldown=seconds(5)), standing=Standing(desired=1))
    first = pool.look(IDLE)
    assert first.recheck_at == NOON + seconds(5)
    assert pool.look(IDLE, after=5).recheck_at == NOON + seconds(10)
    assert pool.desired(IDLE, after=5) == 0


def test_zero_cooldown_shrinks_at_once() -> None:
    spec = replace(SPEC, cooldown=seconds(0), empty_for=seconds(0))
    pool = Pool(spec, standing=Standing(desired=5))
    assert pool.desired(jobs(5)) == 1
    assert pool.desired(IDLE) == 0


def test_old_statistics_keep_the_count() -> None:
    pool = Pool(standing=Standing(desired=3))
    report = LoadReport(pool.now, {})
    pool.judge(report)
    pool.now += seconds(3600)
    decision = pool.judge(report).decision
    assert (decision.desired, decision.reason) == (3, Reason.STALE_STATS)
    assert decision.explanation == "the statistics are 3600 s old: kept at 3"


def test_no_statistics_yet_keep_the_count() -> None:
    decision = Pool(standing=Standing(desired=3)).look(None).decision
    assert (decision.desired, decision.reason) == (3, Reason.STALE_STATS)


def test_time_without_statistics_does_not_count_as_empty() -> None:
    pool = Pool(standing=Standing(desired=2))
    pool.look(IDLE)
    pool.look(None, after=60)
    assert pool.desired(IDLE, after=1) == 2
    assert pool.desired(IDLE, after=9.9) == 2
    assert pool.desired(IDLE, after=0.1) == 0


def test_incomplete_statistics_may_grow_but_never_shrink_a_pool() -> None:
    pool = Pool(standing=Standing(desired=2))
    for _ in range(10):
        decision = pool.look(IDLE, after=60, missing=("s1",)).decision
        assert (decision.desired, decision.reason) == (2, Reason.STALE_STATS)
        assert "shard s1 did not answer" in decision.explanation
    assert pool.look(jobs(40), missing=("s1",)).decision.desired == 4


def test_capped_count_never_shrinks_a_pool() -> None:
    pool = Pool(standing=Standing(desired=5))
    capped = Load(backlog=20, capped=True)
    for _ in range(10):
        assert pool.desired(capped, after=60) == 5


def test_hold_goes_before_the_rule_until_it_ends() -> None:
    pool = Pool(hold=Hold(3, NOON + seconds(60)))
    held = pool.look(jobs(50))
    assert (held.decision.desired, held.decision.reason) == (3, Reason.MANUAL)
    kept = pool.look(IDLE, after=59.9)
    assert (kept.decision.desired, kept.recheck_at) == (3, NOON + seconds(60))
    assert pool.desired(jobs(50), after=0.1) == 5


def test_hold_without_an_end_lasts() -> None:
    pool = Pool(hold=Hold(2))
    assert pool.desired(IDLE, after=86400 * 365) == 2


def test_hold_may_stop_a_pool_below_its_minimum_but_not_pass_its_maximum() -> None:
    assert Pool(replace(SPEC, min_workers=2), hold=Hold(0)).desired(jobs(50)) == 0
    above = Pool(hold=Hold(50)).look(IDLE).decision
    assert above.desired == 5
    assert above.explanation.endswith("the maximum is 5")


def test_released_hold_waits_for_the_cooldown_before_it_shrinks() -> None:
    pool = Pool(hold=Hold(4, NOON + seconds(60)))
    pool.look(IDLE)
    assert pool.desired(IDLE, after=60) == 4
    assert pool.desired(IDLE, after=10) == 0


def test_new_bounds_act_at_once() -> None:
    pool = Pool(standing=Standing(desired=5))
    pool.spec = replace(SPEC, max_workers=2)
    assert pool.desired(jobs(500)) == 2
    pool.spec = replace(SPEC, min_workers=3)
    assert pool.desired(IDLE) == 3


def test_next_due_time_warms_one_worker_up() -> None:
    pool = Pool()
    soon = Load(next_due=NOON + seconds(5))
    asleep = pool.look(soon)
    assert (asleep.decision.desired, asleep.recheck_at) == (0, NOON + seconds(4))
    warm = pool.look(soon, after=4)
    assert (warm.decision.desired, warm.decision.reason) == (1, Reason.BACKLOG)
    assert "the next job is due at 12:00:05Z" in warm.decision.explanation


def test_work_that_no_statistics_saw_restarts_the_time_of_emptiness() -> None:
    pool = Pool(standing=Standing(desired=1))
    pool.look(IDLE)
    pool.worked_at = NOON + seconds(6)
    assert pool.desired(IDLE, after=12) == 1
    assert pool.standing.empty_since == NOON + seconds(6)
    assert pool.desired(IDLE, after=4) == 0


def test_crash_loop_holds_starts_back_and_says_why() -> None:
    died = CLEAN.after_crash(NOON, NOON, "exit code 1: no module named shop")
    pool = Pool(crashes=died)
    held = pool.look(jobs(30))
    assert (held.decision.desired, held.decision.reason) == (3, Reason.CRASH_LOOP)
    assert "no module named shop" in held.decision.explanation
    assert held.start_limit == 0
    assert pool.look(jobs(30)).recheck_at == NOON + seconds(0.5)
    assert pool.look(jobs(30), after=0.5).start_limit == 1


def test_first_try_after_a_crash_is_made_with_one_worker_alone() -> None:
    died = CLEAN.after_crash(NOON, NOON, "exit code 1")
    pool = Pool(crashes=died)
    assert pool.look(jobs(30), after=1).start_limit == 1
    pool.fleet = Fleet(starting=1)
    assert pool.look(jobs(30)).start_limit == 0
    pool.crashes = died.after_registration()
    outcome = pool.look(jobs(30))
    assert outcome.start_limit is None
    assert outcome.decision.reason is Reason.STEADY


def test_crash_loop_is_no_reason_when_enough_workers_live() -> None:
    died = CLEAN.after_crash(NOON, NOON, "exit code 1")
    pool = Pool(crashes=died, fleet=Fleet(live=3), standing=Standing(desired=3))
    assert pool.look(jobs(30)).decision.reason is Reason.STEADY


def test_decision_keeps_its_time_while_only_numbers_change() -> None:
    pool = Pool()
    pool.look(jobs(51))
    later = pool.look(jobs(99), after=5).decision
    assert (later.time, later.backlog, later.previous) == (NOON, 99, 0)


def test_growth_stays_the_reason_while_the_count_fits() -> None:
    pool = Pool()
    pool.look(jobs(20))
    assert pool.look(jobs(15), after=1).decision.reason is Reason.BACKLOG
    assert pool.look(jobs(5), after=1).decision.reason is Reason.COOLDOWN
    assert pool.look(jobs(15), after=1).decision.reason is Reason.STEADY


def test_recheck_comes_when_the_statistics_would_be_too_old() -> None:
    pool = Pool(standing=Standing(desired=1))
    assert pool.look(jobs(0, in_flight=1)).recheck_at == NOON + seconds(15)


def test_clock_set_back_does_not_freeze_the_cooldown() -> None:
    pool = Pool(standing=Standing(desired=2))
    pool.look(IDLE)
    pool.look(IDLE, after=-3600)
    assert pool.desired(IDLE, after=10) == 0
