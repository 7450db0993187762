"""Workers' reports and what the rows said to them: from the wire and back.

What most reports say, that the handler returned, comes in columns; so do the verdicts. A worker of
an older version, or a report that says more, has a message for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField
from services.mesh.jobs import ids
from services.mesh.jobs.reports import (
    Checkpointed,
    Failed,
    HandedBack,
    Progressed,
    Report,
    Started,
    Succeeded,
    Successes,
)
from services.mesh.wire.payloads import payload_from_proto
from services.mesh.wire.progress import progress_from_proto
from services.mesh.wire.retries import failure_from_proto
from services.mesh.wire.values import storable
from services.orchestrator.app.reports import Verdict

ID_BYTES = 16
#: The contract's bound on checkpoints.
MAX_CHECKPOINT_BYTES = 64 * 1024
LONGEST_WAIT = timedelta(days=30)
MAX_REASON = 1000

_VERDICTS = {
    Verdict.COMMITTED: pb.VERDICT_COMMITTED,
    Verdict.STALE: pb.VERDICT_STALE,
    Verdict.RETRY: pb.VERDICT_RETRY,
    Verdict.INVALID: pb.VERDICT_INVALID,
}


def report_from_proto(message: pb.AttemptReport, worker_id: str) -> Report | None:
    """None for a report that says nothing, or nothing this version stores."""
    try:
        job_id = ids.from_bytes(message.job_id)
    except ValueError:
        return None
    fence, kind = message.dispatch_no, message.WhichOneof("report")
    match kind:
        case "started":
            return Started(job_id, fence, worker_id, _elapsed(message))
        case "succeeded":
            output = payload_from_proto(message.succeeded.output)
            return Succeeded(job_id, fence, worker_id, output, _elapsed(message))
        case "failed":
            return Failed(
                job_id,
                fence,
                worker_id,
                failure_from_proto(
                    message.failed.failure,
                    timed_out=message.failed.timed_out,
                    infrastructure=message.failed.infrastructure,
                ),
                _elapsed(message),
                _wait(message.failed, "retry_after"),
            )
        case "handed_back":
            given = message.handed_back
            note = storable(given.reason)[:MAX_REASON]
            return HandedBack(job_id, fence, worker_id, note, _wait(given, "delay"))
        case "snoozed":
            delay = _wait(message.snoozed, "delay") or timedelta(0)
            return HandedBack(job_id, fence, worker_id, "", delay, True, _elapsed(message))
        case "progress":
            progress = progress_from_proto(message.progress)
            return Progressed(job_id, fence, worker_id, progress) if progress else None
        case "checkpoint":
            state = payload_from_proto(message.checkpoint.data)
            fits = state.ref is None and state.size <= MAX_CHECKPOINT_BYTES
            return Checkpointed(job_id, fence, worker_id, state) if fits else None
        case _:
            return None


def _wait(message: Message, field: str) -> timedelta | None:
    """How long a job shall wait, held to bounds: a duration on the wire may say anything."""
    if not message.HasField(field):
        return None
    span: Duration = getattr(message, field)
    seconds = min(max(-1, span.seconds), int(LONGEST_WAIT.total_seconds()))
    wait = timedelta(seconds=seconds, microseconds=span.nanos // 1000)
    return min(max(timedelta(0), wait), LONGEST_WAIT)


def _elapsed(message: pb.AttemptReport) -> timedelta | None:
    return timedelta(microseconds=message.elapsed_us) if message.elapsed_us > 0 else None


def successes_from_proto(
    message: pb.SucceededAttempts, worker_id: str
) -> tuple[Successes, list[pb.ReportVerdict]]:
    """The columns, and verdicts on those whose job id is none. InvalidField if the columns are not
    of one length: then nobody knows what belongs together.
    """
    data, fences = message.job_ids, list(message.dispatch_nos)
    count = len(fences)
    elapsed, outputs = list(message.elapsed_us), list(message.outputs) or None
    columns = (fences, elapsed, fences if outputs is None else outputs)
    if len(data) != count * ID_BYTES or any(len(column) != count for column in columns):
        raise InvalidField("succeeded", "its columns must have one entry for each attempt")
    keys = [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]
    said = Successes(worker_id, keys, fences, elapsed, outputs, message.content_type)
    bad = {place for place, key in enumerate(keys) if not ids.is_id(key)}
    if not bad:
        return said, []
    refused = [invalid_verdict(keys[place], fences[place]) for place in sorted(bad)]
    return said.part([place for place in range(count) if place not in bad]), refused


def invalid_verdict(job_id: bytes, dispatch_no: int) -> pb.ReportVerdict:
    return pb.ReportVerdict(job_id=job_id, dispatch_no=dispatch_no, verdict=pb.VERDICT_INVALID)


def answer_to_proto(
    said: Sequence[Report] | Successes, verdicts: Sequence[Verdict], *, columns: bool
) -> pb.ReportAttemptsResponse:
    """One verdict per report, in order; in columns to a worker that reads them."""
    answer = pb.ReportAttemptsResponse()
    keys, fences = _dispatches(said)
    if not columns:
        for key, fence, verdict in zip(keys, fences, verdicts, strict=True):
            answer.verdicts.add(job_id=key, dispatch_no=fence, verdict=_VERDICTS[verdict])
        return answer
    at = 0
    for verdict, run in groupby(verdicts):
        until = at + sum(1 for _ in run)
        answer.judged.add(
            verdict=_VERDICTS[verdict],
            job_ids=b"".join(keys[at:until]),
            dispatch_nos=fences[at:until],
        )
        at = until
    return answer


def _dispatches(said: Sequence[Report] | Successes) -> tuple[list[bytes], list[int]]:
    if isinstance(said, Successes):
        return said.keys, said.fences
    return [report.job_id.bytes for report in said], [report.fence for report in said]
