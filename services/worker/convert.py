"""Between the wire and the worker's records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import repeat

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import DecodeError
from jobmesh.v1 import bus_pb2, job_pb2, orchestrator_service_pb2, worker_service_pb2

from services.mesh.jobs.limits import Limit
from services.mesh.jobs.retry import FailureKind
from services.mesh.wire.logs import log_line_to_proto
from services.mesh.wire.payloads import object_from_proto, payload_from_proto, payload_to_proto
from services.mesh.wire.retries import failure_to_proto
from services.mesh.wire.values import EPOCH, datetime_of_micros, duration, timestamp
from services.worker.app.voice import News
from services.worker.domain.attempt import Attempt, Batch
from services.worker.domain.ending import (
    Answer,
    Checkpointed,
    Failed,
    HandedBack,
    Progressed,
    Report,
    Snoozed,
    Started,
    Succeeded,
    Verdict,
)
from services.worker.domain.info import Description, WorkerInfo

#: The longest wait that retry policies may have, too.
LONGEST_WISH = timedelta(days=30)

_VERDICTS = {
    orchestrator_service_pb2.VERDICT_COMMITTED: Verdict.COMMITTED,
    orchestrator_service_pb2.VERDICT_STALE: Verdict.STALE,
    orchestrator_service_pb2.VERDICT_RETRY: Verdict.RETRY,
    orchestrator_service_pb2.VERDICT_INVALID: Verdict.INVALID,
}

#: Job ids are UUIDs of this version; checked on the bytes, as this is done for each dispatch.
ID_VERSION = 7
ID_BYTES = 16

# --- the broker


def grab_to_bytes(
    worker_id: str, type_: str, credit: int, grab_no: int, *, waits: bool = True
) -> bytes:
    message = bus_pb2.Grab(
        worker_id=worker_id, type=type_, credit=credit, grab_no=grab_no, waits=waits, columns=True
    )
    return message.SerializeToString()


def batch_from_bytes(data: bytes) -> Batch:
    """Raises ValueError for anything but a well-formed batch."""
    try:
        message = bus_pb2.DispatchBatch.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a batch: {error}") from error
    type_ = message.type
    attempts = [_attempt(dispatch, type_, dispatch.job_id) for dispatch in message.dispatches]
    if message.HasField("alike"):
        attempts += _alike(message.alike, type_)
    return Batch(
        type=type_,
        grab_no=message.grab_no,
        attempts=attempts,
        scheduler_id=message.scheduler_id,
        draining=message.draining,
        now_us=message.now_us,
        clock=message.clock,
        grab_at=message.grab_at,
        more=message.more,
    )


def _alike(columns: bus_pb2.DispatchColumns, type_: str) -> list[Attempt]:
    ids = columns.job_ids
    keys = [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
    for column in (columns.inputs, columns.due_times_us):
        if column and len(column) != len(keys):
            raise ValueError(f"{len(column)} entries for {len(keys)} jobs")
    if not keys:
        return []
    like = _attempt(columns.like, type_, keys[0])
    for key in keys:
        _check_key(key)
    inputs = columns.inputs or repeat(like.data, len(keys))
    due_times = columns.due_times_us or repeat(like.due_us, len(keys))
    return list(map(like.another, keys, inputs, due_times))


def _check_key(key: bytes) -> None:
    if len(key) != ID_BYTES or key[6] >> 4 != ID_VERSION:
        raise ValueError(f"{key.hex()} is not a job id")


def _attempt(message: bus_pb2.Dispatch, type_: str, key: bytes) -> Attempt:
    given, fence = message.input, message.dispatch_no
    if fence < 1:
        raise ValueError(f"dispatch_no {fence}: expected at least 1")
    _check_key(key)
    attempt = Attempt(
        key=key,
        fence=fence,
        type=type_,
        namespace=message.namespace,
        number=message.attempt,
        max_attempts=message.max_attempts,
        data=given.data,
        object=object_from_proto(given.object) if given.HasField("object") else None,
        content_type=given.content_type,
        run_timeout=_seconds(message.run_timeout) if message.HasField("run_timeout") else None,
        traceparent=message.traceparent,
        due_us=message.due_time_us,
        limits=tuple(Limit(one.name, one.places) for one in message.limits)
        if message.limits
        else (),
    )
    if message.HasField("progress_timeout"):
        attempt.progress_timeout = _seconds(message.progress_timeout)
    if message.HasField("total_left"):
        attempt.total_left = _seconds(message.total_left)
    if message.HasField("checkpoint"):
        attempt.checkpoint = payload_from_proto(message.checkpoint)
    return attempt


def _seconds(span: duration_pb2.Duration) -> float:
    return span.seconds + span.nanos / 1e9


def cancels_from_bytes(data: bytes) -> list[tuple[bytes, int]]:
    """The attempts a hint wants stopped, by key and fence."""
    try:
        hint = bus_pb2.CancelHint.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a cancel hint: {error}") from error
    return [(attempt.job_id, attempt.dispatch_no) for attempt in hint.attempts]


# --- reports


def reports_to_proto(
    reports: Sequence[Report], now: float, *, columns: bool
) -> orchestrator_service_pb2.ReportAttemptsRequest:
    """One message, sent `now` by the monotonic clock. With `columns`, the plain ones in these: they
    count as said first, so no attempt of which something else is said, like its start, is among
    them.
    """
    request = orchestrator_service_pb2.ReportAttemptsRequest()
    others = {_dispatch(report) for report in reports if not isinstance(report.what, Succeeded)}
    plain: dict[tuple[str, bool], list[tuple[Attempt, bytes | None]]] = {}
    for report in reports:
        what = report.what
        alone = columns and not (others and _dispatch(report) in others)
        if alone and isinstance(what, Succeeded) and _is_plain(report, what):
            output = what.output
            kind = output.content_type, output.data is not None
            plain.setdefault(kind, []).append((report.attempt, output.data))
        else:
            request.reports.append(_report(report, now))
    for (content_type, has_data), group in plain.items():
        request.succeeded.add(
            job_ids=b"".join([attempt.key for attempt, _ in group]),
            dispatch_nos=[attempt.fence for attempt, _ in group],
            elapsed_us=[_elapsed_us(attempt, now) for attempt, _ in group],
            outputs=[data or b"" for _, data in group] if has_data else (),
            content_type=content_type,
        )
    return request


def _dispatch(report: Report) -> tuple[bytes, int]:
    return report.attempt.key, report.attempt.fence


def _is_plain(report: Report, what: Succeeded) -> bool:
    return what.output.ref is None and not report.traceparent


def _elapsed_us(attempt: Attempt, now: float) -> int:
    """Since its handler began; 0 if it did not."""
    return max(1, round((now - attempt.began) * 1_000_000)) if attempt.has_begun else 0


def _report(report: Report, now: float) -> orchestrator_service_pb2.AttemptReport:
    attempt, what = report.attempt, report.what
    message = orchestrator_service_pb2.AttemptReport(
        job_id=attempt.key,
        dispatch_no=attempt.fence,
        elapsed_us=_elapsed_us(attempt, now),
    )
    if report.traceparent:
        message.traceparent = report.traceparent
    if isinstance(what, Succeeded):
        _set_succeeded(message.succeeded, what)
    elif isinstance(what, Failed):
        message.failed.CopyFrom(_failed(what))
    elif isinstance(what, HandedBack):
        message.handed_back.reason = what.reason
        if what.delay:
            message.handed_back.delay.FromTimedelta(timedelta(seconds=what.delay))
    elif isinstance(what, Started):
        message.started.SetInParent()
    elif isinstance(what, Snoozed):
        message.snoozed.delay.FromTimedelta(_wish(what.delay))
    elif isinstance(what, Checkpointed):
        _set_checkpoint(message.checkpoint, what)
    else:
        message.progress.CopyFrom(_progress(what))
    return message


def _set_succeeded(message: orchestrator_service_pb2.AttemptSucceeded, what: Succeeded) -> None:
    message.SetInParent()
    output = payload_to_proto(what.output)
    if output is not None:
        message.output.CopyFrom(output)


def _set_checkpoint(
    message: orchestrator_service_pb2.AttemptCheckpoint, what: Checkpointed
) -> None:
    message.SetInParent()
    state = payload_to_proto(what.state)
    if state is not None:
        message.data.CopyFrom(state)


def _failed(what: Failed) -> orchestrator_service_pb2.AttemptFailed:
    after = None if what.retry_after is None else _wish(what.retry_after)
    return orchestrator_service_pb2.AttemptFailed(
        failure=failure_to_proto(what.failure),
        retry_after=duration(after),
        timed_out=what.failure.kind is FailureKind.TIMEOUT,
        infrastructure=what.failure.kind is FailureKind.INFRASTRUCTURE,
    )


def _wish(seconds: float) -> timedelta:
    """What a handler wishes may be no number, or more than a calendar holds."""
    return min(timedelta(seconds=max(0.0, min(seconds, 1e9))), LONGEST_WISH)


def _progress(what: Progressed) -> job_pb2.Progress:
    return job_pb2.Progress(
        done=what.done,
        total=what.total,
        message=what.message[:1000].encode(errors="replace").decode(),
        update_time=timestamp(EPOCH + timedelta(microseconds=what.time_us)),
    )


def news_to_proto(attempt: Attempt, news: News) -> worker_service_pb2.WatchAttemptResponse:
    lines = [log_line_to_proto(line, attempt.number, attempt.fence) for line in news.lines]
    response = worker_service_pb2.WatchAttemptResponse(lines=lines)
    if news.progress is not None:
        response.progress.CopyFrom(_progress(news.progress))
    return response


def answers_from_proto(
    message: orchestrator_service_pb2.ReportAttemptsResponse,
) -> list[Answer]:
    # A verdict of a newer version is unknown to us: asking again later is safe.
    answers = [
        Answer(_VERDICTS.get(one.verdict, Verdict.RETRY), [(one.job_id, one.dispatch_no)])
        for one in message.verdicts
    ]
    for run in message.judged:
        ids = run.job_ids
        keys = [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
        dispatches = list(zip(keys, run.dispatch_nos, strict=False))
        answers.append(Answer(_VERDICTS.get(run.verdict, Verdict.RETRY), dispatches))
    return answers


# --- the worker itself


def info_to_proto(info: WorkerInfo) -> worker_service_pb2.WorkerInfo:
    types = [
        worker_service_pb2.TypeCapacity(type=type_, capacity=room)
        for type_, room in info.capacity.items()
    ]
    return worker_service_pb2.WorkerInfo(
        worker_id=info.worker_id,
        types=types,
        address=info.address,
        host=info.host,
        pid=info.pid,
        start_time=timestamp(info.start_time),
        version=info.version,
        started_by=info.started_by,
        draining=info.draining,
    )


def description_to_proto(
    about: Description,
) -> worker_service_pb2.WorkerServiceDescribeResponse:
    return worker_service_pb2.WorkerServiceDescribeResponse(
        worker=info_to_proto(about.info),
        running=about.running,
        draining=about.info.draining,
        lease_trusted_until=timestamp(about.lease_trusted_until),
        finished=about.finished,
    )


def _moment(micros: int) -> timestamp_pb2.Timestamp | None:
    return timestamp(datetime_of_micros(micros)) if micros else None


def running_to_proto(
    attempts: Iterable[Attempt],
) -> Sequence[worker_service_pb2.RunningAttempt]:
    return [
        worker_service_pb2.RunningAttempt(
            job_id=str(attempt.job_id),
            namespace=attempt.namespace,
            type=attempt.type,
            attempt=attempt.number,
            dispatch_no=attempt.fence,
            start_time=_moment(attempt.start_us),
            executor_pid=attempt.executor_pid,
        )
        for attempt in attempts
    ]
