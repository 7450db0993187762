"""Protobuf to domain and back, both directions side by side."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from jobmesh.v1 import orchestrator_service_pb2, pool_pb2, scaler_service_pb2, worker_service_pb2

from services.mesh.errors import InvalidField, PageTokenInvalid
from services.mesh.wire.masks import merge
from services.mesh.wire.values import (
    datetime_of,
    duration,
    optional_datetime,
    optional_timedelta,
    timedelta_of,
    timestamp,
)
from services.scaler.domain import pool as defaults
from services.scaler.domain.decision import Alarm, Decision, PoolStatus, Reason
from services.scaler.domain.fleet import Fleet, Worker
from services.scaler.domain.load import Load, LoadReport
from services.scaler.domain.pool import PoolRecord, PoolSpec, ProcessLaunch

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000

# --- pools ---


def spec_from_proto(spec: pool_pb2.PoolSpec) -> PoolSpec:
    """The spec with its defaults filled in."""
    max_workers = spec.max_workers or max(defaults.DEFAULT_MAX_WORKERS, spec.min_workers)
    return PoolSpec(
        type=spec.type,
        min_workers=spec.min_workers,
        max_workers=max_workers,
        target_backlog_per_worker=spec.target_backlog_per_worker or defaults.DEFAULT_TARGET_BACKLOG,
        high_alarm_backlog=spec.high_alarm_backlog or defaults.DEFAULT_HIGH_ALARM,
        empty_for=_or(optional_timedelta(spec, "empty_for"), defaults.DEFAULT_EMPTY_FOR),
        cooldown=_or(optional_timedelta(spec, "cooldown"), defaults.DEFAULT_COOLDOWN),
        drain_timeout=_or(
            optional_timedelta(spec, "drain_timeout"), defaults.DEFAULT_DRAIN_TIMEOUT
        ),
        process=_process_from_proto(spec.process) if spec.HasField("process") else None,
    )


def spec_to_proto(spec: PoolSpec) -> pool_pb2.PoolSpec:
    return pool_pb2.PoolSpec(
        type=spec.type,
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        target_backlog_per_worker=spec.target_backlog_per_worker,
        high_alarm_backlog=spec.high_alarm_backlog,
        empty_for=duration(spec.empty_for),
        cooldown=duration(spec.cooldown),
        drain_timeout=duration(spec.drain_timeout),
        process=_process_to_proto(spec.process) if spec.process else None,
    )


def _process_from_proto(driver: pool_pb2.ProcessDriver) -> ProcessLaunch:
    return ProcessLaunch(driver.app, driver.capacity, driver.directory)


def _process_to_proto(launch: ProcessLaunch) -> pool_pb2.ProcessDriver:
    return pool_pb2.ProcessDriver(
        app=launch.app, capacity=launch.capacity, directory=launch.directory
    )


def spec_change(
    request: scaler_service_pb2.UpdatePoolRequest,
) -> Callable[[PoolSpec], PoolSpec]:
    """What an update asks for, as a function of the spec it finds. Raises InvalidField."""
    mask = request.update_mask
    for path in mask.paths:
        _check_path(path)

    def changed(current: PoolSpec) -> PoolSpec:
        if not mask.paths:
            return spec_from_proto(request.spec)
        merged = spec_to_proto(current)
        merge(request.spec, merged, mask)
        return spec_from_proto(merged)

    return changed


def _check_path(path: str) -> None:
    """A field mask names fields of the spec, at any depth; the type cannot change."""
    fields = pool_pb2.PoolSpec.DESCRIPTOR.fields_by_name
    for name in path.split("."):
        if name not in fields:
            raise InvalidField("update_mask", f"a pool's spec has no field {path!r}")
        message = fields[name].message_type
        fields = message.fields_by_name if message is not None else {}


def pool_to_proto(record: PoolRecord, status: PoolStatus | None) -> pool_pb2.Pool:
    pool = status_to_proto(status) if status is not None else pool_pb2.Pool()
    pool.spec.CopyFrom(spec_to_proto(record.spec))
    pool.etag = record.etag
    return pool


# --- statuses: what the acting Scaler found ---


def status_to_proto(status: PoolStatus) -> pool_pb2.Pool:
    return pool_pb2.Pool(
        desired=status.decision.desired,
        actual=status.fleet.live,
        starting=status.fleet.starting,
        draining=status.fleet.draining,
        decision=decision_to_proto(status.decision),
        alarms=[_alarm_to_proto(alarm) for alarm in status.alarms],
    )


def status_from_proto(pool: pool_pb2.Pool) -> PoolStatus:
    return PoolStatus(
        fleet=Fleet(pool.actual, pool.starting, pool.draining),
        decision=decision_from_proto(pool.decision),
        alarms=tuple(_alarm_from_proto(alarm) for alarm in pool.alarms),
    )


def decision_to_proto(decision: Decision) -> pool_pb2.Decision:
    return pool_pb2.Decision(
        desired=decision.desired,
        previous=decision.previous,
        reason=pool_pb2.DecisionReason.ValueType(decision.reason.value),
        explanation=decision.explanation,
        time=timestamp(decision.time),
        backlog=decision.backlog,
        in_flight=decision.in_flight,
        oldest_age=duration(decision.oldest_age),
    )


def decision_from_proto(decision: pool_pb2.Decision) -> Decision:
    return Decision(
        desired=decision.desired,
        previous=decision.previous,
        reason=_reason(decision.reason),
        explanation=decision.explanation,
        time=datetime_of(decision.time),
        backlog=decision.backlog,
        in_flight=decision.in_flight,
        oldest_age=timedelta_of(decision.oldest_age),
    )


def _reason(number: int) -> Reason:
    """A reason that a newer Scaler wrote and this one does not know is no reason to fail."""
    return Reason(number) if number in {reason.value for reason in Reason} else Reason.STEADY


def _alarm_to_proto(alarm: Alarm) -> pool_pb2.Alarm:
    return pool_pb2.Alarm(
        name=alarm.name,
        ringing=alarm.ringing,
        condition=alarm.condition,
        change_time=timestamp(alarm.changed_at),
    )


def _alarm_from_proto(alarm: pool_pb2.Alarm) -> Alarm:
    return Alarm(alarm.name, alarm.ringing, alarm.condition, datetime_of(alarm.change_time))


def trail_to_proto(trail: Sequence[Decision]) -> scaler_service_pb2.ExplainDecisionResponse:
    return scaler_service_pb2.ExplainDecisionResponse(
        decisions=[decision_to_proto(decision) for decision in trail]
    )


def trail_from_proto(
    response: scaler_service_pb2.ExplainDecisionResponse,
) -> tuple[Decision, ...]:
    return tuple(decision_from_proto(decision) for decision in response.decisions)


# --- what others say ---


def report_from_proto(
    response: orchestrator_service_pb2.StatsResponse, received_at: datetime
) -> LoadReport:
    return LoadReport(
        received_at,
        {stats.type: _load_from_proto(stats) for stats in response.types},
        tuple(response.missing_shards),
    )


def _load_from_proto(stats: orchestrator_service_pb2.TypeStats) -> Load:
    return Load(
        backlog=stats.backlog,
        in_flight=stats.in_flight,
        oldest_age=timedelta_of(stats.oldest_age),
        next_due=optional_datetime(stats, "next_due_time"),
        capped=stats.capped,
    )


def worker_from_proto(info: worker_service_pb2.WorkerInfo) -> Worker:
    return Worker(
        worker_id=info.worker_id,
        types={one.type: one.capacity for one in info.types},
        address=info.address,
        host=info.host,
        pid=info.pid,
        started_at=optional_datetime(info, "start_time"),
        started_by=info.started_by,
        draining=info.draining,
    )


# --- pages ---


def page_size(asked: int) -> int:
    return min(asked or DEFAULT_PAGE, LARGEST_PAGE)


def page_token(last_type: str) -> str:
    return base64.urlsafe_b64encode(f"pool:{last_type}".encode()).decode()


def page_start(token: str) -> str:
    """The type after which the page begins."""
    try:
        mark, _, type_ = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise PageTokenInvalid from error
    if token and mark != "pool":
        raise PageTokenInvalid
    return type_


def _or(value: timedelta | None, default: timedelta) -> timedelta:
    return default if value is None else value
