"""Between the wire and what is said to and by attached executors."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from jobmesh.v1 import job_pb2, worker_service_pb2
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator
from jobmesh.v1.enqueue_service_pb2 import Drain

from services.mesh.errors import InvalidField
from services.mesh.jobs.model import NO_PAYLOAD, Payload
from services.mesh.jobs.retry import FailureKind
from services.mesh.wire.payloads import object_to_proto, payload_to_proto
from services.mesh.wire.values import timedelta_of
from services.worker.app.conversation import (
    AttachedExecutor,
    Cancelled,
    End,
    Handed,
    Judged,
    Message,
    Uploaded,
)
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack, Snoozed, Verdict, failure
from services.worker.domain.guests import Hold
from services.worker.ports import Returned

ID_BYTES = 16
#: The last second of the year 9999.
LAST_SECOND = 253_402_300_799
MAX_CHECKPOINT_BYTES = 64 * 1024
#: The longest wait that retry policies may have, too.
LONGEST_WAIT_SECONDS = 30 * 24 * 3600.0

_VERDICTS = {
    Verdict.COMMITTED: orchestrator.VERDICT_COMMITTED,
    Verdict.STALE: orchestrator.VERDICT_STALE,
    Verdict.RETRY: orchestrator.VERDICT_RETRY,
    Verdict.INVALID: orchestrator.VERDICT_INVALID,
}

# --- to an executor


def message_to_proto(message: Message) -> worker_service_pb2.AttachResponse:
    if isinstance(message, Handed):
        return worker_service_pb2.AttachResponse(attempt=_handed(message))
    if isinstance(message, Cancelled):
        attempt = message.attempt
        cancel = worker_service_pb2.CancelAttemptRequest(
            job_id=str(attempt.job_id), dispatch_no=attempt.fence
        )
        return worker_service_pb2.AttachResponse(cancel=cancel)
    if isinstance(message, Judged):
        verdict = orchestrator.ReportVerdict(
            job_id=message.key, dispatch_no=message.fence, verdict=_VERDICTS[message.verdict]
        )
        return worker_service_pb2.AttachResponse(verdict=verdict)
    return worker_service_pb2.AttachResponse(drain=Drain())


def _handed(handed: Handed) -> worker_service_pb2.AttachAttempt:
    attempt = handed.attempt
    message = worker_service_pb2.AttachAttempt(
        job_id=attempt.key,
        dispatch_no=attempt.fence,
        type=attempt.type,
        attempt=attempt.number,
        input_url=handed.input_url,
        output_url=handed.output_url,
        namespace=attempt.namespace,
        max_attempts=attempt.max_attempts,
        traceparent=attempt.traceparent,
    )
    _set_input(message, attempt)
    if handed.run_timeout is not None:
        message.run_timeout.FromNanoseconds(int(handed.run_timeout * 1e9))
    if attempt.checkpoint is not None and (state := payload_to_proto(attempt.checkpoint)):
        message.checkpoint.CopyFrom(state)
    return message


def _set_input(message: worker_service_pb2.AttachAttempt, attempt: Attempt) -> None:
    if attempt.content_type:
        message.input.content_type = attempt.content_type
    if attempt.object is not None:
        message.input.object.CopyFrom(object_to_proto(attempt.object))
    elif attempt.data:
        message.input.data = attempt.data


# --- from an executor


def take_word(end: AttachedExecutor, request: worker_service_pb2.AttachRequest) -> None:
    """Act on what an executor says; InvalidField for what makes no sense."""
    kind = request.WhichOneof("message")
    if kind == "credit":
        end.give_credit(request.credit.credit)
    elif kind == "report":
        _take_report(end, request.report)
    elif kind == "logs":
        _take_logs(end, request.logs)
    elif kind == "extend":
        said = request.extend
        seconds = timedelta_of(said.duration).total_seconds()
        end.extended((said.job_id, said.dispatch_no), seconds)
    else:
        raise InvalidField("hello", "may come only once, as the first message")


def _take_logs(end: AttachedExecutor, logs: worker_service_pb2.AttachLog) -> None:
    hold = (logs.job_id, logs.dispatch_no)
    for line in logs.lines:
        end.logged(hold, line.text, _micros(line.time))


def _micros(time: Timestamp) -> int:
    """0, which is now, for what is no time."""
    if not 0 <= time.seconds <= LAST_SECOND:
        return 0
    return time.seconds * 1_000_000 + max(0, time.nanos) // 1000


def _take_report(end: AttachedExecutor, report: orchestrator.AttemptReport) -> None:
    hold = _hold(report)
    match report.WhichOneof("report"):
        case "started":
            end.sign(hold)
        case "progress":
            _take_progress(end, hold, report.progress)
        case "checkpoint":
            end.checkpointed(hold, _state(report.checkpoint))
        case "succeeded":
            end.ended(hold, _output(report.succeeded))
        case "failed":
            end.ended(hold, _failed(report.failed))
        case "handed_back":
            back = report.handed_back
            end.ended(hold, HandedBack(back.reason[:200] or "executor", _wait(back, "delay")))
        case "snoozed":
            end.ended(hold, Snoozed(_wait(report.snoozed, "delay")))
        case _:
            raise InvalidField("report.report", "says nothing about the attempt")


def _hold(report: orchestrator.AttemptReport) -> Hold:
    if len(report.job_id) != ID_BYTES:
        raise InvalidField("report.job_id", "expected the 16 bytes of the attempt")
    if report.dispatch_no < 1:
        raise InvalidField("report.dispatch_no", "expected that of the attempt, at least 1")
    return report.job_id, report.dispatch_no


def _take_progress(end: AttachedExecutor, hold: Hold, said: job_pb2.Progress) -> None:
    if said.done < 0 or said.total < 0:
        raise InvalidField("report.progress", "done and total must not be negative")
    end.progressed(hold, said.done, said.total, said.message)


def _state(message: orchestrator.AttemptCheckpoint) -> Payload:
    data = message.data
    if data.HasField("object"):
        raise InvalidField("report.checkpoint.data.object", "a checkpoint travels inline")
    if len(data.data) > MAX_CHECKPOINT_BYTES:
        limit = f"at most {MAX_CHECKPOINT_BYTES} bytes"
        raise InvalidField("report.checkpoint.data.data", limit)
    if not data.data and not data.content_type:
        return NO_PAYLOAD
    return Payload.inline(data.data, data.content_type)


def _output(message: orchestrator.AttemptSucceeded) -> End:
    output = message.output
    if output.HasField("object"):
        return Uploaded(output.content_type, output.object.size_bytes, output.object.sha256)
    return Returned(output.data, output.content_type)


def _failed(message: orchestrator.AttemptFailed) -> Failed:
    said = message.failure
    found = failure(
        said.type,
        said.message,
        said.traceback,
        kind=FailureKind.PERMANENT if said.permanent else FailureKind.ERROR,
        exit_code=said.exit_code if said.HasField("exit_code") else None,
    )
    return Failed(found, _wait(message, "retry_after") if message.HasField("retry_after") else None)


def _wait(
    message: orchestrator.AttemptFailed
    | orchestrator.AttemptHandedBack
    | orchestrator.AttemptSnoozed,
    field: str,
) -> float:
    try:
        seconds = timedelta_of(getattr(message, field)).total_seconds()
    except (ValueError, OverflowError) as error:
        raise InvalidField(f"report.{field}", "is no span of time") from error
    if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise InvalidField(f"report.{field}", "must be from 0 s to 30 days")
    return seconds
