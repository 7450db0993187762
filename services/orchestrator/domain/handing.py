"""Which new jobs may be handed to a worker as they are stored, and what it is handed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from services.mesh.jobs.alike import AlikeClaimed, AlikeJobs
from services.mesh.jobs.model import Claimed, NewJob
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult

#: Of the statement that stores them.
FENCE = ATTEMPT = 1
#: The first one is their creation.
VERSION = 2


def handed_type(jobs: Sequence[NewJob]) -> str | None:
    """The type of jobs that may all be handed out; None: they go the usual way.

    Nothing but the worker's room may stand between them and their start: they are due at once, and
    no deadline, limit or other job decides whether they may begin.
    """
    type_ = jobs[0].type
    looked_at = [jobs.like] if isinstance(jobs, AlikeJobs) else jobs
    return type_ if all(job.type == type_ and _is_free(job) for job in looked_at) else None


def _is_free(job: NewJob) -> bool:
    return (
        job.due_time is None
        and job.delay is None
        and job.expire_time is None
        and job.timeouts.start is None
        and job.concurrency_key is None
        and job.ties is None
        and job.schedule_id is None
        and job.origin_id is None
    )


def dispatches(jobs: Sequence[NewJob], answer: PutAnswer) -> Sequence[Claimed]:
    """Those of the jobs that the statement handed out, as their worker gets them."""
    if isinstance(jobs, AlikeJobs) and answer.time is not None and answer.handed:  # all of them
        return AlikeClaimed(_claimed(jobs[0], answer.time, answer.time), jobs.keys, jobs.inputs)
    found = zip(jobs, answer.results, strict=True)
    return list(_dispatches((j, r) for j, r in found if isinstance(r, PutResult) and _is_ours(r)))


def _is_ours(result: PutResult) -> bool:
    """Or that an earlier try of the same statement did, whose answer was lost: nobody but that one
    can have made the second version of a job that has no third.
    """
    return result.handed or (
        result.outcome is PutOutcome.CREATED
        and result.state is JobState.DISPATCHED
        and result.version == VERSION
    )


def _dispatches(handed: Iterable[tuple[NewJob, PutResult]]) -> Iterable[Claimed]:
    for job, result in handed:
        yield _claimed(job, result.due_time, result.create_time)


def _claimed(job: NewJob, due_time: datetime, dispatch_time: datetime) -> Claimed:
    return Claimed(
        job.id,
        job.namespace,
        job.type,
        FENCE,
        ATTEMPT,
        1 if job.retry is None else job.retry.attempts,
        due_time,
        dispatch_time,
        job.timeouts,
        job.input,
        job.traceparent,
        VERSION,
        job.timeouts.total,
    )
