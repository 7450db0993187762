"""Decisions in words. Moments are given in UTC, so that a sentence stays true when read later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from services.scaler.domain.ceiling import Limit
from services.scaler.domain.crashes import CrashRecord
from services.scaler.domain.load import Load
from services.scaler.domain.pool import Hold, PoolSpec


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def span(length: timedelta) -> str:
    seconds = length.total_seconds()
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"


def moment(at: datetime) -> str:
    return f"{at:%H:%M:%S}Z"


def waiting(load: Load) -> str:
    return f"{load.backlog}{'+' if load.capped else ''} waiting"


def work(load: Load) -> str:
    return f"{waiting(load)} and {load.in_flight} in hand"


def formula(spec: PoolSpec, load: Load, limit: Limit | None = None) -> str:
    target, wanted = spec.target_backlog_per_worker, spec.workers_for(load.jobs)
    text = f"{work(load)}, at {target} per worker, need {count(wanted, 'worker')}"
    if limit is None or wanted <= (useful := limit.workers(load.in_flight)):
        return text
    return f"{text}; the type's limit of {limit.at_once} at once can use {useful}"


def needed(spec: PoolSpec, load: Load, need: int, limit: Limit | None = None) -> str:
    wanted = spec.workers_for(load.jobs)
    if limit is not None:
        wanted = min(wanted, limit.workers(load.in_flight))
    if wanted > spec.max_workers:
        return f"{formula(spec, load, limit)}; the maximum is {spec.max_workers}"
    if wanted < need:
        return f"{formula(spec, load, limit)}; the minimum is {spec.min_workers}"
    return formula(spec, load, limit)


def below_alarm(spec: PoolSpec, load: Load, before: int) -> str:
    return (
        f"{formula(spec, load)}; kept at {before}, because fewer than {spec.high_alarm_backlog} "
        f"wait and the oldest not yet for {span(spec.cooldown)}"
    )


def due_soon(load: Load, lead: timedelta) -> str:
    due = moment(load.next_due) if load.next_due else "now"
    return f"the next job is due at {due} and a worker takes {span(lead)} to start"


def at_rest(minimum: int) -> str:
    return f"nothing is due and nothing in hand: the pool rests at its minimum of {minimum}"


def emptied(spec: PoolSpec, since: datetime, need: int) -> str:
    return (
        f"nothing due and nothing in hand since {moment(since)}, "
        f"longer than {span(spec.empty_for)}: back to {need}"
    )


def emptying(since: datetime, until: datetime, before: int, need: int) -> str:
    return (
        f"nothing due and nothing in hand since {moment(since)}: "
        f"kept at {before}, back to {need} at {moment(until)}"
    )


def surplus(
    spec: PoolSpec, load: Load, since: datetime, peak: int, limit: Limit | None = None
) -> str:
    return (
        f"{formula(spec, load, limit)}; no more than {peak} were needed since {moment(since)}, "
        f"longer than the cooldown of {span(spec.cooldown)}"
    )


def cooling(
    spec: PoolSpec, load: Load, until: datetime, before: int, limit: Limit | None = None
) -> str:
    text = f"{formula(spec, load, limit)}; kept at {before}"
    return f"{text} until the cooldown of {span(spec.cooldown)} ends at {moment(until)}"


def manual(spec: PoolSpec, hold: Hold, desired: int) -> str:
    until = f"until {moment(hold.until)}" if hold.until else "until it is given back"
    text = f"an operator fixed the count at {hold.desired} {until}"
    return text if desired == hold.desired else f"{text}; the maximum is {spec.max_workers}"


def paused(load: Load, text: str) -> str:
    if load.backlog == 0:
        return f"the type is paused; {text}"
    return f"the type is paused, so {waiting(load)} jobs do not count. Without them: {text}"


def stale(before: int, why: str) -> str:
    return f"{why}: kept at {before}"


def old_statistics(age: timedelta) -> str:
    return f"the statistics are {span(age)} old"


def missing_shards(names: Sequence[str]) -> str:
    return f"shard {', '.join(names)} did not answer, so there may be more work than is counted"


def crashing(desired: int, text: str, crashes: CrashRecord) -> str:
    last = f"the last one: {crashes.detail}" if crashes.detail else "nobody knows why"
    rounds = "a worker died" if crashes.rounds == 1 else f"workers died {crashes.rounds} times"
    retry = f"next try at {moment(crashes.retry_at)}" if crashes.retry_at else "trying again"
    return f"{rounds} at start ({last}); {retry}. Wanted are {desired}: {text}"


def high_condition(spec: PoolSpec) -> str:
    return f"at least {count(spec.high_alarm_backlog, 'due job')} waiting"


def empty_condition(spec: PoolSpec) -> str:
    return f"nothing due and nothing in hand for {span(spec.empty_for)}"
