"""Where the samples of the recovery table come from: canaries, events, watches, calls, logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from services.mesh.jobs.ids import bucket_for_key
from services.mesh.jobs.topology import BucketMap
from tests.chaos.evidence import Event, Evidence
from tests.chaos.job_rules import CLAIMED, DISPATCHED, RUNNING, SWEPT
from tests.chaos.orders import LANE, LIMITED

#: A shard that is away for longer than this must have been noticed.
BREAKER_SECONDS = 2.0
#: One that is back has so long to serve again.
BACK_SECONDS = 3.0


class Taken(NamedTuple):
    """One sample: when, how long, and by which fault if that is known."""

    at: float
    seconds: float
    fault: int | None = None


def rescued(evidence: Evidence) -> Iterator[Taken]:
    """For each job that a killed worker had in hand: until a handler of it began again."""
    killed = {
        fault["detail"]["worker_id"]: fault
        for fault in evidence.faults
        if fault["kind"] == "kill.worker" and fault["detail"].get("worker_id")
    }
    for job, events in _unlimited(evidence):
        for held, following in pairwise(events):
            fault = killed.get(held.worker or "")
            if fault is None or held.state not in (DISPATCHED, RUNNING):
                continue
            at = fault["began"]
            if held.time <= at < following.time:
                again = [run.began for run in evidence.ledger.of(job).values() if run.began > at]
                if again:
                    yield Taken(at, min(again) - at, fault["number"])


def swept(evidence: Evidence) -> Iterator[Taken]:
    """From a claim whose dispatch was lost to the next claim, if a message can pass by then."""
    for claim, back, again in _lost(evidence):
        if _mute_until(evidence, back.time) is None:
            yield Taken(claim.time, again.time - claim.time)


def swept_in_silence(evidence: Evidence) -> Iterator[Taken]:
    """The same for what was taken back while the broker passed nothing on: from when it does."""
    for _, back, again in _lost(evidence):
        healed = _mute_until(evidence, back.time)
        if healed is not None:
            yield Taken(healed, max(0.0, again.time - healed))


def _lost(evidence: Evidence) -> Iterator[tuple[Event, Event, Event]]:
    """The claim, the sweep and the next claim of each dispatch that got lost."""
    for _, events in _unlimited(evidence):
        for index, event in enumerate(events):
            if event.reason == SWEPT:
                claim = next(e for e in reversed(events[:index]) if e.reason == CLAIMED)
                again = next((e for e in events[index:] if e.reason == CLAIMED), None)
                if again:
                    yield claim, event, again


def _mute_until(evidence: Evidence, at: float) -> float | None:
    """When a fault healed in which every message was dropped at that time."""
    planned = {fault["number"]: fault["options"] for fault in evidence.plan.get("faults", ())}
    for fault in evidence.faults:
        options = planned.get(fault["number"], {})
        is_mute = fault["kind"] == "drop.broker" and options.get("share") == 1.0
        if is_mute and fault["began"] <= at < fault.get("healed", fault["began"]):
            return float(fault["healed"])
    return None


def _unlimited(evidence: Evidence) -> Iterator[tuple[str, list[Event]]]:
    """What happened to jobs that do not wait for each other: how long that takes is their own."""
    limited = {row.id for row in evidence.rows if row.type in (LIMITED, LANE)}
    yield from ((job, line) for job, line in evidence.events.items() if job not in limited)


def resumed(evidence: Evidence) -> Iterator[Taken]:
    for line in evidence.watches:
        if "resumed" in line:
            yield Taken(line["resumed"], line["at"] - line["resumed"])


def lateness(evidence: Evidence) -> Iterator[Taken]:
    for row in evidence.rows:
        runs = evidence.ledger.of(row.id)
        if runs and row.type not in (LIMITED, LANE):  # these wait for each other
            began = min(run.began for run in runs.values())
            yield Taken(row.first_due, max(0.0, began - row.first_due))


def errors_elsewhere(evidence: Evidence) -> Iterator[Taken]:
    """For each keyed call while a shard is away that is another one's: 1 if it failed, else 0. That
    other one is there: not away, too, nor just back.
    """
    shards = [f"s{number}" for number in range(evidence.plan.get("shards", 3))]
    buckets = BucketMap.even(shards)
    away = list(_shards_away(evidence))
    for op in evidence.history:
        if op["op"] != "enqueue" or not op.get("key") or _lives_elsewhere(op):
            continue
        home = buckets.shard_of(bucket_for_key(op["namespace"], op["key"]))
        if any(shard_of(fault) == home and _is_felt(fault, op) for fault in away):
            continue
        for fault in away:
            if fault["began"] <= op["begin"] < fault["healed"]:
                yield Taken(op["begin"], float(op["outcome"] != "ok"), fault["number"])


def _lives_elsewhere(op: dict[str, Any]) -> bool:
    """A tree, or a job that waits for others: wherever these are, they are asked for as well. And
    one with a unique key, which goes before its idempotency key.
    """
    return op.get("kind") == "tree" or "parents" in op or "unique" in op


def _is_felt(fault: dict[str, Any], op: dict[str, Any]) -> bool:
    """Whether a call may have met a shard that this fault struck: before it, or while it was under
    way.
    """
    return bool(fault["began"] <= op["end"] and op["begin"] < fault["healed"] + BACK_SECONDS)


def opened_breakers(evidence: Evidence, logs: Path) -> Iterator[Taken]:
    """From the loss of a shard to the breaker of each Orchestrator, as their logs tell."""
    for log in sorted(logs.glob("orchestrator*.log")):
        changes = list(_changes(log))
        for fault in _shards_away(evidence):
            began, until = fault.get("struck", fault["began"]), fault["until"]
            own = [(at, is_away) for at, shard, is_away in changes if shard == shard_of(fault)]
            found = [
                at for at, is_away in own if is_away and fault["began"] <= at < fault["healed"]
            ]
            if found:
                yield Taken(began, max(0.0, found[0] - began), fault["number"])
            elif _was_away(own, fault["began"]):
                continue  # by another fault: there was nothing to notice
            elif until - began > BREAKER_SECONDS:
                yield Taken(began, until - began, fault["number"])


def shard_of(fault: dict[str, Any]) -> str:
    """`shard-1` is known as s1."""
    return "s" + str(fault["target"]).rpartition("-")[2]


def _shards_away(evidence: Evidence) -> Iterator[dict[str, Any]]:
    kinds = ("kill.shard", "stop.shard")
    yield from (f for f in evidence.faults if f["kind"] in kinds and "healed" in f)


def _was_away(changes: list[tuple[float, bool]], at: float) -> bool:
    """What the last change before that was; one that has said nothing yet has not answered yet."""
    return ([True] + [is_away for time, is_away in changes if time < at])[-1]


def _changes(log: Path) -> Iterator[tuple[float, str, bool]]:
    """When which shard was found to be away, or not to be."""
    with log.open(errors="replace") as lines:
        for line in lines:
            if '"shard_health"' not in line or not line.endswith("}\n"):
                continue
            told = json.loads(line)
            is_away = told["message"].startswith(f"shard {told['shard']} is away")
            yield datetime.fromisoformat(told["time"]).timestamp(), told["shard"], is_away
