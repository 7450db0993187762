"""Which stored jobs are in a worker's hands, and what it gets of them."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

from services.mesh.jobs.alike import AlikeClaimed, AlikeJobs
from services.mesh.jobs.ids import new_job_keys
from services.mesh.jobs.model import NewJob, Payload
from services.mesh.jobs.retry import RetryPolicy
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.orchestrator.domain.handing import dispatches

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def alike(count: int = 3) -> AlikeJobs:
    keys = new_job_keys(range(count), 1_700_000_000_000, Random(1))
    text = Payload.inline(b"", "text/plain")
    like = NewJob(UUID(bytes=keys[0]), "n", "t", text, retry=RetryPolicy(max_attempts=5))
    return AlikeJobs(like, keys, [b"%d" % n for n in range(count)])


def created(jobs: Any, *, handed: bool) -> list[Any]:
    made = PutOutcome.CREATED, JobState.SCHEDULED, 1, NOW, NOW, True, handed
    return [PutResult(made[0], job.id, *made[1:]) for job in jobs]


def test_jobs_in_columns_are_handed_out_as_one_by_one():
    jobs = alike()
    at_once = PutAnswer(created(jobs, handed=True), [], NOW, handed=True)
    one_by_one = PutAnswer(created(jobs, handed=True), [])
    columns = dispatches(jobs, at_once)
    assert isinstance(columns, AlikeClaimed)
    assert list(columns) == dispatches(list(jobs), one_by_one)


def test_jobs_that_were_stored_into_the_queue_after_all_are_in_nobodys_hands():
    """What is sent again after an unknown outcome names no worker."""
    jobs = alike()
    answer = PutAnswer(created(jobs, handed=False), [], NOW)
    assert not dispatches(jobs, answer)
