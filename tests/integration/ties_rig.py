"""Jobs that are tied to others, as tests of the store make and end them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from services.mesh.jobs.model import NewJob
from services.mesh.jobs.reports import Failed, Succeeded
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Dependency, ParentFailurePolicy, Ties, UniquePolicy
from services.mesh.store.answers import (
    PutResult,
)
from tests.integration.store_rig import EPOCH, Rig, new_job

CANCEL, RUN, FAIL = ParentFailurePolicy.CANCEL, ParentFailurePolicy.RUN, ParentFailurePolicy.FAIL
KEEP, REPLACE, REFUSE = UniquePolicy.KEEP, UniquePolicy.REPLACE, UniquePolicy.REFUSE
BLOCKED, SCHEDULED = JobState.BLOCKED, JobState.SCHEDULED
DAY = timedelta(days=1)


def waiting(*parents: UUID, policy: ParentFailurePolicy = CANCEL, **fields: Any) -> NewJob:
    """A job that waits for these."""
    waits = tuple(Dependency(parent, policy) for parent in parents)
    return new_job(**{"type": "child", "ties": Ties(waits, waits)} | fields)


def keyed(key: str, policy: UniquePolicy = KEEP, **fields: Any) -> NewJob:
    return new_job(ties=Ties(unique_key=key, unique_policy=policy), **fields)


async def store(rig: Rig, *jobs: NewJob) -> list[PutResult]:
    return (await rig.store.put_tied_jobs(jobs, EPOCH)).results


async def await_(rig: Rig, *ids: UUID) -> None:
    await rig.store.await_jobs([("n", job_id) for job_id in ids])


async def child_of(rig: Rig, *parents: UUID, **given: Any) -> UUID:
    """A child as a submitter makes it: the parents are marked first."""
    await await_(rig, *parents)
    child = waiting(*parents, **given)
    (result,) = await store(rig, child)
    assert result.state is BLOCKED
    return child.id


async def release_all(rig: Rig) -> list[JobState]:
    """What a scheduler does, until nothing is left to do; the states that came of it."""
    states: list[JobState] = []
    while parents := await rig.store.take_ended_parents():
        states += [event.state for event in (await rig.store.release(parents)).events]
        await rig.store.forget_ended_parents([parent.job_id for parent in parents])
    return states


async def finish(rig: Rig, job_id: UUID, *, fails: bool = False) -> None:
    jobs = {job.id: job for job in await rig.claim(limit=100)}
    fence = jobs[job_id].fence
    end = Failed(job_id, fence, "w1", Failure("ValueError", "boom"))
    await rig.say(end if fails else Succeeded(job_id, fence, "w1"))
