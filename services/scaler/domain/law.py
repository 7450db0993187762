"""The law: how many workers a pool should have, and why.

    jobs    = backlog + in flight
    need    = clamp(ceil(jobs / target_backlog_per_worker), min_workers, max_workers)

Growing never waits: when the high alarm rings, the count rises to `need` at once, from zero too. A
backlog too small for the alarm grows the pool as well once its oldest job has waited longer than
the cooldown, so that no job waits for company that never comes.

Shrinking waits until `need` has been below the count for a whole cooldown without a break, and then
goes down to the highest need of that time. So load that swings faster than the cooldown changes
nothing. The last worker goes only when the empty alarm rings: nothing due and nothing in hand for
`empty_for`; the pool is then back at its minimum, usually 0. Work in hand is part of `jobs`, so the
count never falls below what the running attempts need. Jobs that begin and end between two
statistics are in none: they restart that time by the workers' own word (`worked_at`).

Not knowing is not the same as zero. On old statistics the count stays. On incomplete ones (a shard
is away, or the count is capped) the numbers are lower bounds: they may grow a pool, not shrink it.

When nothing is due now but the next job is due sooner than a worker starts, one worker counts as
needed already.

A limit of how many attempts of the type run at once is a ceiling below the maximum: `need` is no
more than what it can use, but never less than the minimum. Of a paused type only what is in hand
counts: what waits is handed to nobody.

An operator's hold goes before all of this. Workers that die at start hold back new starts, not the
desired count: see `crashes`.

`decide` is a fold: it returns, next to the decision, the `Standing` to pass to the next call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from services.scaler.domain import words
from services.scaler.domain.ceiling import Limit
from services.scaler.domain.crashes import CLEAN, CrashRecord
from services.scaler.domain.decision import FITTING, REGARDLESS, Alarm, Decision, Reason
from services.scaler.domain.fleet import Fleet
from services.scaler.domain.load import Load, LoadReport
from services.scaler.domain.pool import Hold, PoolSpec

#: After a change the pool is looked at again at once: its next cooldown starts with that look.
SOON = timedelta(milliseconds=10)

_BLANK = Load()
_NOBODY = Fleet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything the law looks at, at one moment."""

    now: datetime
    report: LoadReport | None
    fleet: Fleet = _NOBODY
    hold: Hold | None = None
    crashes: CrashRecord = CLEAN
    #: Statistics older than this are not believed.
    stale_after: timedelta = timedelta(seconds=15)
    #: How long a worker takes from start to registration.
    lead: timedelta = timedelta(seconds=1)
    #: When workers of the pool were last found to have worked, as far as they were asked.
    worked_at: datetime | None = None
    #: The limit of the type, if it has one.
    limit: Limit | None = None
    #: Jobs of the type are not handed to workers.
    paused: bool = False

    def ceiling(self, load: Load) -> int | None:
        """How many workers the limit can use; None without one."""
        return None if self.limit is None else self.limit.workers(load.in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the law remembers of a pool from one look to the next."""

    desired: int = 0
    #: Since when the need has been below the desired count without a break, and its highest value.
    surplus_since: datetime | None = None
    surplus_peak: int = 0
    empty_since: datetime | None = None
    #: The decision before, and both alarms as last evaluated.
    decision: Decision | None = None
    alarms: tuple[Alarm, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from one look."""

    decision: Decision
    standing: Standing
    #: How many workers may be started now; None: as many as are missing.
    start_limit: int | None
    #: When the outcome may change though nothing else does; None: never.
    recheck_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The load of the pool's type as far as it can be believed."""

    seen: Load
    #: Old or absent: nothing follows from it.
    blind: bool
    #: The counts are lower bounds.
    partial: bool
    why: str = ""
    paused: bool = False

    @property
    def load(self) -> Load:
        """What counts."""
        return self.seen.in_hand() if self.paused else self.seen

    @property
    def whole(self) -> bool:
        return not self.blind and not self.partial


@dataclass(frozen=True, slots=True)
class _Choice:
    desired: int
    reason: Reason
    text: str


def decide(spec: PoolSpec, sight: Sight, standing: Standing) -> Outcome:
    """Decide about one pool; see the module's docstring for the law."""
    evidence = replace(_weigh(spec, sight), paused=sight.paused)
    before = spec.clamp(standing.desired)
    need = _need(spec, sight, evidence.load)
    held = sight.hold is not None and sight.hold.active(sight.now)
    low_need = None if held or need >= before else need
    watched = _watch(sight, evidence, standing, low_need)
    choice = _choose(spec, sight, evidence, watched, before, need)
    alarms = _alarms(spec, sight, evidence, watched)
    decision = _worded(sight, evidence, standing, choice)
    after = replace(watched, desired=choice.desired, decision=decision, alarms=alarms)
    if choice.desired != standing.desired:
        # Every change starts a cooldown of its own.
        after = replace(after, surplus_since=None, surplus_peak=0)
    limit = sight.crashes.start_limit(sight.now, sight.fleet.starting)
    changed = choice.desired != standing.desired
    recheck = sight.now + SOON if changed else _recheck(spec, sight, evidence, after)
    return Outcome(decision, after, limit, recheck)


# --- what is known ---


def _weigh(spec: PoolSpec, sight: Sight) -> _Evidence:
    report = sight.report
    if report is None:
        return _Evidence(_BLANK, True, False, "no statistics have come yet")
    load = report.of(spec.type)
    age = sight.now - report.received_at
    if age >= sight.stale_after:
        return _Evidence(load, True, False, words.old_statistics(age))
    if report.missing_shards:
        return _Evidence(load, False, True, words.missing_shards(report.missing_shards))
    if load.capped and not sight.paused:
        return _Evidence(load, False, True, f"more than {load.backlog} jobs wait, not all counted")
    return _Evidence(load, False, False)


def _need(spec: PoolSpec, sight: Sight, load: Load) -> int:
    wanted = spec.workers_for(load.jobs)
    # Nothing is started ahead for a job whose wait alone would not ring the alarm.
    if wanted == 0 and spec.high_alarm_backlog <= 1 and _due_soon(sight, load):
        wanted = 1
    ceiling = sight.ceiling(load)
    return spec.clamp(wanted if ceiling is None else min(wanted, ceiling))


def _bound(spec: PoolSpec, sight: Sight, load: Load) -> Reason | None:
    """What keeps the count below what the jobs ask for."""
    wanted, ceiling = spec.workers_for(load.jobs), sight.ceiling(load)
    if ceiling is not None and ceiling < min(wanted, spec.max_workers):
        return Reason.LIMITED
    return Reason.AT_MAX if wanted > spec.max_workers else None


def _due_soon(sight: Sight, load: Load) -> bool:
    return load.next_due is not None and load.next_due - sight.lead <= sight.now


def _watch(sight: Sight, evidence: _Evidence, standing: Standing, low_need: int | None) -> Standing:
    """Move both stopwatches on: for less need than workers (`low_need`), and for no work at all.

    Only whole evidence lets them run. A clock set back restarts them rather than stops them.
    """
    empty_since = surplus_since = None
    peak = 0
    if evidence.whole and evidence.load.jobs == 0:
        empty_since = min(standing.empty_since or sight.now, sight.now)
        empty_since = max(empty_since, min(sight.worked_at or empty_since, sight.now))
    if evidence.whole and low_need is not None:
        surplus_since = min(standing.surplus_since or sight.now, sight.now)
        peak = max(standing.surplus_peak, low_need)
    return replace(
        standing, empty_since=empty_since, surplus_since=surplus_since, surplus_peak=peak
    )


# --- the rules, in order; the first that applies decides ---


def _choose(
    spec: PoolSpec, sight: Sight, evidence: _Evidence, watched: Standing, before: int, need: int
) -> _Choice:
    if sight.hold is not None and sight.hold.active(sight.now):
        return _manual(spec, sight.hold)
    if evidence.blind:
        return _Choice(before, Reason.STALE_STATS, words.stale(before, evidence.why))
    if need > before:
        return _grow(spec, sight, evidence, before, need)
    if need == before:
        return _keep(spec, sight, evidence.load, need)
    if evidence.partial:
        return _Choice(before, Reason.STALE_STATS, words.stale(before, evidence.why))
    return _shrink(spec, sight, evidence.load, watched, before, need)


def _manual(spec: PoolSpec, hold: Hold) -> _Choice:
    # Below the minimum is allowed, to stop a pool; the maximum protects what the workers use.
    desired = min(hold.desired, spec.max_workers)
    return _Choice(desired, Reason.MANUAL, words.manual(spec, hold, desired))


def _grow(spec: PoolSpec, sight: Sight, evidence: _Evidence, before: int, need: int) -> _Choice:
    load = evidence.load
    if load.jobs == 0:
        return _Choice(need, Reason.BACKLOG, words.due_soon(load, sight.lead))
    ringing = load.backlog >= spec.high_alarm_backlog
    if not ringing and _age(sight, load) < spec.cooldown:
        return _Choice(before, Reason.STEADY, words.below_alarm(spec, load, before))
    reason = _bound(spec, sight, load) or Reason.BACKLOG
    return _Choice(need, reason, words.needed(spec, load, need, sight.limit))


def _age(sight: Sight, load: Load) -> timedelta:
    """The age of the oldest waiting job by now."""
    if load.backlog == 0 or sight.report is None:
        return timedelta()
    return load.oldest_age + (sight.now - sight.report.received_at)


def _keep(spec: PoolSpec, sight: Sight, load: Load, need: int) -> _Choice:
    if load.jobs == 0:
        if need > spec.min_workers:
            return _Choice(need, Reason.STEADY, words.due_soon(load, sight.lead))
        return _Choice(need, Reason.AT_REST, words.at_rest(need))
    reason = _bound(spec, sight, load) or Reason.STEADY
    return _Choice(need, reason, words.needed(spec, load, need, sight.limit))


def _shrink(
    spec: PoolSpec, sight: Sight, load: Load, watched: Standing, before: int, need: int
) -> _Choice:
    since = watched.surplus_since or sight.now
    cool = sight.now - since >= spec.cooldown
    empty_since = watched.empty_since
    if empty_since and cool and sight.now - empty_since >= spec.empty_for:
        return _Choice(need, Reason.EMPTY, words.emptied(spec, empty_since, need))
    # One worker stays until the empty alarm rings.
    peak = max(1, watched.surplus_peak)
    if cool and peak < before:
        return _Choice(peak, Reason.SCALE_IN, words.surplus(spec, load, since, peak, sight.limit))
    if empty_since and before == 1:
        until = max(since + spec.cooldown, empty_since + spec.empty_for)
        return _Choice(before, Reason.COOLDOWN, words.emptying(empty_since, until, before, need))
    text = words.cooling(spec, load, since + spec.cooldown, before, sight.limit)
    return _Choice(before, Reason.COOLDOWN, text)


# --- telling ---


def _worded(sight: Sight, evidence: _Evidence, standing: Standing, choice: _Choice) -> Decision:
    last = standing.decision
    reason, text = choice.reason, choice.text
    if evidence.paused and reason not in REGARDLESS:
        reason = Reason.PAUSED if reason in FITTING else reason
        text = words.paused(evidence.seen, text)
    if choice.desired > sight.fleet.coming and sight.crashes.retry_at is not None:
        reason, text = Reason.CRASH_LOOP, words.crashing(choice.desired, text, sight.crashes)
    elif reason is Reason.STEADY and last is not None and last.desired == choice.desired:
        # What fits since the pool grew is still the reason for its size.
        reason = Reason.BACKLOG if last.reason is Reason.BACKLOG else reason
    seen = evidence.seen
    decision = Decision(
        desired=choice.desired,
        previous=standing.desired,
        reason=reason,
        explanation=text,
        time=sight.now,
        backlog=seen.backlog,
        in_flight=seen.in_flight,
        oldest_age=seen.oldest_age,
    )
    if last is not None and decision.repeats(last):
        return replace(decision, previous=last.previous, time=last.time)
    return decision


def _alarms(
    spec: PoolSpec, sight: Sight, evidence: _Evidence, watched: Standing
) -> tuple[Alarm, ...]:
    if evidence.blind and watched.alarms:
        return watched.alarms
    high = not evidence.blind and evidence.load.backlog >= spec.high_alarm_backlog
    since = watched.empty_since
    empty = since is not None and sight.now - since >= spec.empty_for
    before = {alarm.name: alarm for alarm in watched.alarms}
    rows = (
        ("backlog-high", high, words.high_condition(spec)),
        ("empty", empty, words.empty_condition(spec)),
    )
    return tuple(_alarm(before.get(name), sight, name, on, text) for name, on, text in rows)


def _alarm(before: Alarm | None, sight: Sight, name: str, ringing: bool, condition: str) -> Alarm:
    unchanged = before is not None and before.ringing == ringing
    changed_at = before.changed_at if before is not None and unchanged else sight.now
    return Alarm(name, ringing, condition, changed_at)


def _recheck(
    spec: PoolSpec, sight: Sight, evidence: _Evidence, standing: Standing
) -> datetime | None:
    load = evidence.load
    moments: list[datetime | None] = [
        sight.hold.until if sight.hold else None,
        sight.crashes.retry_at,
        standing.surplus_since + spec.cooldown if standing.surplus_since else None,
        standing.empty_since + spec.empty_for if standing.empty_since else None,
        load.next_due - sight.lead if load.next_due else None,
    ]
    if sight.report is not None:
        moments.append(sight.report.received_at + sight.stale_after)
    if sight.report is not None and load.backlog:
        moments.append(sight.report.received_at - load.oldest_age + spec.cooldown)
    return min((moment for moment in moments if moment and moment > sight.now), default=None)
