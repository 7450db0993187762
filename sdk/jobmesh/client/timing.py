"""What can be said about when a schedule runs, and how: keywords to fields of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from jobmesh.client.convert import to_timestamp
from jobmesh.options import EnqueueOptions
from jobmesh.policies import to_duration
from jobmesh.times import Span
from jobmesh.v1 import schedule_pb2

Schedule = schedule_pb2.Schedule


class Timing(TypedDict, total=False):
    """When a schedule runs, and what it does when things go another way."""

    #: This often, aligned to the epoch; `phase` shifts it.
    every: Span | None
    phase: Span | None
    #: One cron expression or several, all in `time_zone` (an IANA name; UTC if not said).
    cron: str | Sequence[str] | None
    time_zone: str
    #: Cron expressions in the same zone: times that are left out.
    exclude: str | Sequence[str]
    start: datetime | None
    end: datetime | None
    max_runs: int
    jitter: Span | None
    #: allow_all, skip, buffer_one, buffer_all, cancel_other
    overlap: str
    #: skip, last, all; nothing older than `catch_up_window`
    catch_up: str
    catch_up_window: Span | None
    #: skip, run_at_shift, run_before
    dst_gap: str
    #: once, twice
    dst_overlap: str
    pause_on_failure: bool


class ScheduleOptions(Timing, EnqueueOptions, total=False):
    """Everything about a schedule but its name, type and input."""


#: Keywords that say when; of the rest each stands for one field.
RULES = frozenset({"every", "phase", "cron", "time_zone"})
TIMING = frozenset(Timing.__annotations__)

_FIELDS = {
    "start": "start_time",
    "end": "end_time",
    "overlap": "overlap_policy",
    "catch_up": "catch_up_policy",
    "dst_gap": "dst_gap_policy",
    "dst_overlap": "dst_overlap_policy",
    "exclude": "exclusions",
}
_POLICIES = {
    "overlap": schedule_pb2.OverlapPolicy,
    "catch_up": schedule_pb2.CatchUpPolicy,
    "dst_gap": schedule_pb2.DstGapPolicy,
    "dst_overlap": schedule_pb2.DstOverlapPolicy,
}


def apply_timing(message: Schedule, timing: Mapping[str, Any], zone: str = "") -> list[str]:
    """Fill in what is said; the fields that it is about. Cron rules are in `zone` if no zone is."""
    fields: list[str] = []
    zone = str(timing.get("time_zone", zone))
    if RULES & timing.keys():
        message.recurrences.extend(recurrences(timing, zone))
        fields.append("recurrences")
    for keyword in timing.keys() - RULES:
        field = _FIELDS.get(keyword, keyword)
        _set(message, keyword, field, timing[keyword], zone)
        fields.append(field)
    return fields


def moves(timing: Mapping[str, Any]) -> bool:
    """Whether it names a zone, and no rules that take the place of those that are there."""
    return "time_zone" in timing and not {"every", "phase", "cron"} & timing.keys()


def apply_move(message: Schedule, timing: Mapping[str, Any], known: Schedule) -> list[str]:
    """As `apply_timing`, with the cron rules of the `known` schedule in the zone that is named."""
    zone = str(timing["time_zone"])
    others = {keyword: timing[keyword] for keyword in timing.keys() - {"time_zone"}}
    fields = apply_timing(message, others, zone)
    for field in {"recurrences", "exclusions"} - set(fields):
        rules = getattr(message, field)
        rules.extend(getattr(known, field))
        for rule in rules:
            if rule.HasField("cron"):
                rule.cron.time_zone = zone
        fields.append(field)
    if not any(rule.HasField("cron") for rule in (*message.recurrences, *message.exclusions)):
        raise ValueError("it has no cron rules that a time zone could be of")
    return fields


def zone_of(message: Schedule) -> str:
    """The zone that its cron rules are in; ValueError if there are several."""
    rules = (rule for rule in (*message.recurrences, *message.exclusions) if rule.HasField("cron"))
    zones = {rule.cron.time_zone for rule in rules}
    if len(zones) > 1:
        names = ", ".join(sorted(zone or "UTC" for zone in zones))
        raise ValueError(f"its rules are in several time zones ({names}): give time_zone")
    return zones.pop() if zones else ""


def recurrences(timing: Mapping[str, Any], zone: str) -> list[schedule_pb2.Recurrence]:
    """The rules; several where several cron expressions are given."""
    every, cron = timing.get("every"), timing.get("cron")
    if every is None and not cron:
        raise ValueError("give every or cron, or both")
    rules: list[schedule_pb2.Recurrence] = []
    if every is not None:
        interval = schedule_pb2.Interval(every=to_duration(every))
        if timing.get("phase") is not None:
            interval.phase.CopyFrom(to_duration(timing["phase"]))
        rules.append(schedule_pb2.Recurrence(interval=interval))
    return rules + crons(cron, zone)


def crons(given: str | Sequence[str] | None, time_zone: str) -> list[schedule_pb2.Recurrence]:
    expressions = [given] if isinstance(given, str) else list(given or ())
    return [
        schedule_pb2.Recurrence(cron=schedule_pb2.Cron(expression=expression, time_zone=time_zone))
        for expression in expressions
    ]


def _set(message: Schedule, keyword: str, field: str, value: Any, time_zone: str) -> None:
    if keyword in _POLICIES:
        setattr(message, field, policy(keyword, value))
    elif keyword == "exclude":
        message.exclusions.extend(crons(value, time_zone))
    elif keyword in ("max_runs", "pause_on_failure"):
        setattr(message, field, value)
    elif value is not None:
        convert: Callable[..., Any] = to_duration
        if isinstance(value, datetime):
            getattr(message, field).CopyFrom(to_timestamp(value, keyword))
        else:
            getattr(message, field).CopyFrom(convert(value))


def policy(keyword: str, name: str) -> int:
    """The number of a policy; ValueError lists the names there are."""
    wire = _POLICIES[keyword]
    prefix = wire.DESCRIPTOR.values_by_number[0].name.removesuffix("UNSPECIFIED")
    known = {text.removeprefix(prefix).lower(): number for text, number in wire.items() if number}
    chosen = name.lower().replace("-", "_")
    if chosen not in known:
        raise ValueError(f"{keyword}: {name!r} is none of {', '.join(known)}")
    return known[chosen]
