"""Workers' reports and what the rows said to them: from the wire and back.

What most reports say, that the handler returned, comes in columns; so do the verdicts. A worker of
an older version, or a report that says more, has a message for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from operator import itemgetter

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField
from services.mesh.jobs import ids
from services.mesh.jobs.model import NO_PAYLOAD, Payload
from services.mesh.jobs.reports import (
    Checkpointed,
    Failed,
    HandedBack,
    Progressed,
    Report,
    Started,
    Succeeded,
)
from services.mesh.wire.payloads import payload_from_proto
from services.mesh.wire.progress import progress_from_proto
from services.mesh.wire.retries import failure_from_proto
from services.mesh.wire.values import optional_timedelta, storable
from services.orchestrator.app.reports import Verdict

ID_BYTES = 16
#: The contract's bound on checkpoints.
MAX_CHECKPOINT_BYTES = 64 * 1024
LONGEST_SNOOZE_SECONDS = 30 * 24 * 3600

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
            return Started(job_id, fence, worker_id)
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
                optional_timedelta(message.failed, "retry_after"),
            )
        case "handed_back":
            given = message.handed_back
            delay = optional_timedelta(given, "delay")
            return HandedBack(job_id, fence, worker_id, storable(given.reason), delay)
        case "snoozed":
            seconds = min(max(0, message.snoozed.delay.seconds), LONGEST_SNOOZE_SECONDS)
            delay = timedelta(seconds=seconds, microseconds=message.snoozed.delay.nanos // 1000)
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


def _elapsed(message: pb.AttemptReport) -> timedelta | None:
    return timedelta(microseconds=message.elapsed_us) if message.elapsed_us > 0 else None


def succeeded_from_proto(
    message: pb.SucceededAttempts, worker_id: str
) -> Iterator[tuple[bytes, int, Succeeded | None]]:
    """Each job and fence, and its report; None where the job's id is none. InvalidField if the
    columns are not of one length: then nobody knows what belongs together.
    """
    fences, data = message.dispatch_nos, message.job_ids
    count = len(fences)
    outputs = _outputs(message, count)
    if len(data) != count * ID_BYTES or len(message.elapsed_us) != count or len(outputs) != count:
        raise InvalidField("succeeded", "its columns must have one entry for each attempt")
    keys = [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]
    for key, fence, took, output in zip(keys, fences, message.elapsed_us, outputs, strict=True):
        elapsed = timedelta(microseconds=took) if took > 0 else None
        try:
            job_id = ids.from_bytes(key)
        except ValueError:
            yield key, fence, None
        else:
            yield key, fence, Succeeded(job_id, fence, worker_id, output, elapsed)


def _outputs(message: pb.SucceededAttempts, count: int) -> Sequence[Payload]:
    kind = message.content_type
    if message.outputs:
        return [Payload.inline(data, kind) for data in message.outputs]
    return [Payload(kind) if kind else NO_PAYLOAD] * count


def verdict_to_proto(report: Report, verdict: Verdict) -> pb.ReportVerdict:
    return pb.ReportVerdict(
        job_id=report.job_id.bytes, dispatch_no=report.fence, verdict=_VERDICTS[verdict]
    )


def invalid_verdict(job_id: bytes, dispatch_no: int) -> pb.ReportVerdict:
    return pb.ReportVerdict(job_id=job_id, dispatch_no=dispatch_no, verdict=pb.VERDICT_INVALID)


def answer_to_proto(
    reports: Sequence[Report], verdicts: Sequence[Verdict], *, columns: bool
) -> pb.ReportAttemptsResponse:
    """One verdict per report, in order; in columns to a worker that reads them."""
    answer = pb.ReportAttemptsResponse()
    judged = zip(verdicts, reports, strict=True)
    if not columns:
        answer.verdicts.extend(verdict_to_proto(report, verdict) for verdict, report in judged)
        return answer
    for verdict, run in groupby(judged, itemgetter(0)):
        same = [report for _, report in run]
        answer.judged.add(
            verdict=_VERDICTS[verdict],
            job_ids=b"".join([report.job_id.bytes for report in same]),
            dispatch_nos=[report.fence for report in same],
        )
    return answer
