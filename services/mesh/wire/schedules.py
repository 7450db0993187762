"""Schedules. What the contract leaves unspecified is said here, so that answers are explicit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp
from jobmesh.v1 import job_pb2, schedule_pb2

from services.mesh.jobs.cron import Cron, DstGap, DstOverlap
from services.mesh.jobs.model import NO_LABELS
from services.mesh.jobs.overlap import Overlap
from services.mesh.jobs.preview import ClockChange
from services.mesh.jobs.recurrence import (
    DEFAULT_CATCH_UP,
    CatchUp,
    CatchUpPolicy,
    Interval,
    Rule,
)
from services.mesh.jobs.schedules import Definition, JobTemplate, NewSchedule, ScheduleRecord
from services.mesh.wire.payloads import payload_from_proto, payload_to_proto
from services.mesh.wire.retries import (
    retry_from_proto,
    retry_to_proto,
    timeouts_from_proto,
    timeouts_to_proto,
)
from services.mesh.wire.values import (
    duration,
    optional_datetime,
    optional_timedelta,
    timedelta_of,
    timestamp,
)


def new_schedule_from_proto(
    message: schedule_pb2.Schedule, namespace: str, schedule_id: UUID
) -> NewSchedule:
    return NewSchedule(
        id=schedule_id,
        namespace=namespace,
        name=message.name,
        definition=definition_from_proto(message),
        paused=message.paused,
    )


def definition_from_proto(message: schedule_pb2.Schedule) -> Definition:
    gap = DstGap(message.dst_gap_policy) or DstGap.RUN_AT_SHIFT
    overlap = DstOverlap(message.dst_overlap_policy) or DstOverlap.ONCE
    return Definition(
        recurrences=tuple(_rule_from_proto(rule, gap, overlap) for rule in message.recurrences),
        template=_template_from_proto(message.template),
        catch_up=_catch_up_from_proto(message),
        start_time=optional_datetime(message, "start_time"),
        end_time=optional_datetime(message, "end_time"),
        max_runs=message.max_runs,
        jitter=timedelta_of(message.jitter),
        exclusions=tuple(_rule_from_proto(rule, gap, overlap) for rule in message.exclusions),
        overlap=Overlap(message.overlap_policy) or Overlap.ALLOW_ALL,
        pause_on_failure=message.pause_on_failure,
        dst_gap=gap,
        dst_overlap=overlap,
    )


def schedule_to_proto(record: ScheduleRecord) -> schedule_pb2.Schedule:
    definition = record.definition
    return schedule_pb2.Schedule(
        name=record.name,
        namespace=record.namespace,
        template=_template_to_proto(definition.template),
        recurrences=[_rule_to_proto(rule) for rule in definition.recurrences],
        exclusions=[_rule_to_proto(rule) for rule in definition.exclusions],
        start_time=timestamp(definition.start_time),
        end_time=timestamp(definition.end_time),
        max_runs=definition.max_runs,
        jitter=duration(definition.jitter or None),
        overlap_policy=schedule_pb2.OverlapPolicy.ValueType(definition.overlap),
        catch_up_policy=schedule_pb2.CatchUpPolicy.ValueType(definition.catch_up.mode),
        catch_up_window=duration(definition.catch_up.window),
        dst_gap_policy=schedule_pb2.DstGapPolicy.ValueType(definition.dst_gap),
        dst_overlap_policy=schedule_pb2.DstOverlapPolicy.ValueType(definition.dst_overlap),
        pause_on_failure=definition.pause_on_failure,
        paused=record.paused,
        pause_note=record.pause_note,
        next_time=timestamp(record.next_time),
        last_time=timestamp(record.last_time),
        last_job_id=str(record.last_job_id) if record.last_job_id else "",
        runs=record.runs,
        create_time=timestamp(record.create_time),
        etag=str(record.version),
        missed=record.missed,
        waiting=len(record.waiting),
    )


def timestamps(times: Sequence[datetime]) -> list[Timestamp]:
    return [stamp for time in times if (stamp := timestamp(time)) is not None]


def clock_change_to_proto(change: ClockChange) -> schedule_pb2.ClockChange:
    return schedule_pb2.ClockChange(
        time=timestamp(change.time),
        time_zone=change.time_zone,
        shift=duration(change.shift),
        times=timestamps(change.times),
        effect=change.effect,
    )


def _rule_from_proto(message: schedule_pb2.Recurrence, gap: DstGap, overlap: DstOverlap) -> Rule:
    if message.HasField("cron"):
        cron = message.cron
        return Cron(cron.expression.strip(), cron.time_zone or "UTC", gap, overlap)
    return Interval(timedelta_of(message.interval.every), timedelta_of(message.interval.phase))


def _rule_to_proto(rule: Rule) -> schedule_pb2.Recurrence:
    if isinstance(rule, Cron):
        cron = schedule_pb2.Cron(expression=rule.expression, time_zone=rule.time_zone)
        return schedule_pb2.Recurrence(cron=cron)
    return schedule_pb2.Recurrence(
        interval=schedule_pb2.Interval(
            every=duration(rule.every), phase=duration(rule.phase or None)
        )
    )


def _template_from_proto(spec: job_pb2.JobSpec) -> JobTemplate:
    return JobTemplate(
        type=spec.type,
        input=payload_from_proto(spec.input),
        priority=spec.priority,
        timeouts=timeouts_from_proto(spec),
        retry=retry_from_proto(spec.retry_policy) if spec.HasField("retry_policy") else None,
        labels=dict(spec.labels) if spec.labels else NO_LABELS,
        concurrency_key=spec.concurrency_key or None,
    )


def _template_to_proto(template: JobTemplate) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(
        type=template.type,
        input=payload_to_proto(template.input),
        priority=template.priority,
        retry_policy=retry_to_proto(template.retry),
        labels=template.labels,
        timeouts=timeouts_to_proto(template.timeouts),
        concurrency_key=template.concurrency_key or "",
    )


def _catch_up_from_proto(message: schedule_pb2.Schedule) -> CatchUpPolicy:
    mode = CatchUp(message.catch_up_policy) or DEFAULT_CATCH_UP.mode
    window = optional_timedelta(message, "catch_up_window")
    return CatchUpPolicy(mode, DEFAULT_CATCH_UP.window if window is None else window)
