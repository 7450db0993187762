"""Why a job is not running."""

from __future__ import annotations

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb

from services.enqueue import convert
from services.enqueue.domain.explaining import Awaited, Explanation, Standing, explain, shard_away
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.jobs.limits import limit_key
from services.mesh.wire.values import datetime_of, optional_datetime, timestamp


class ExplainCalls:
    """The RPC that explains."""

    _desk: Desk

    async def ExplainJob(
        self, request: pb.ExplainJobRequest, context: Context
    ) -> pb.ExplainJobResponse:
        located = await self._desk.orchestrator.LocateJob(
            orchestrator_pb.LocateJobRequest(
                namespace=convert.namespace_of(request.namespace),
                job_id=convert.job_id_of(request.job_id),
            )
        )
        if located.away_shard:
            return _response(shard_away(located.away_shard))
        job = standing(located)
        said = located.job.spec.concurrency_key
        key = limit_key(located.job.namespace, said) if said else None
        return _response(explain(job, await self._desk.surroundings.of(job.type, key)))


def standing(located: orchestrator_pb.LocateJobResponse) -> Standing:
    job = located.job
    failure = job.failure
    return Standing(
        type=job.spec.type,
        state=_state_name(job),
        now=datetime_of(located.time),
        due_time=datetime_of(job.due_time),
        attempt=job.attempt,
        failure=f"{failure.type}: {failure.message}".rstrip(": ")[:300],
        worker_id=job.worker_id,
        start_time=optional_datetime(job, "start_time"),
        end_time=optional_datetime(job, "end_time"),
        ahead=located.ahead,
        capped=located.ahead_capped,
        starts_per_second=located.starts_per_second,
        missing_shards=tuple(located.missing_shards),
        waits_for=tuple(
            Awaited(parent.id, parent.spec.type, _state_name(parent))
            for parent in located.waits_for
        ),
    )


def _state_name(job: job_pb2.Job) -> str:
    """Empty where the state is not known."""
    name = job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
    return name if job.state else ""


def _response(found: Explanation) -> pb.ExplainJobResponse:
    return pb.ExplainJobResponse(
        reason=pb.WaitReason.ValueType(found.reason),
        explanation=found.words,
        position=found.position,
        position_capped=found.capped,
        estimated_start_time=timestamp(found.start),
        blocking_job_ids=found.blockers,
    )
