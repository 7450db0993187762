"""What a client does to many jobs, or to one that exists already."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypedDict, Unpack

from google.protobuf.field_mask_pb2 import FieldMask

from jobmesh.client.convert import to_datetime, to_filter, to_job, to_state, to_timestamp
from jobmesh.client.handle import AsyncJobHandle
from jobmesh.client.session import Session
from jobmesh.model import Explanation, Job, JobState
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2

log = logging.getLogger(__name__)


class Choice(TypedDict, total=False):
    """Which jobs: all conditions must hold."""

    states: Iterable[JobState | str]
    types: Iterable[str]
    labels: Mapping[str, str] | None
    schedule: str
    #: Stored at or after this time, and before that one.
    since: datetime | None
    until: datetime | None


class JobChanges:
    """The part of AsyncClient that counts, retries, updates, and cancels by filter."""

    _session: Session

    async def explain(self, job_id: str, *, namespace: str | None = None) -> Explanation:
        """Why a job is not running: the dominant reason, its place in the queue, an estimate."""
        request = pb.ExplainJobRequest(namespace=self._session.namespace(namespace), job_id=job_id)
        return to_explanation(await self._session.call(self._session.stub.ExplainJob, request))

    async def count(
        self,
        *,
        namespace: str | None = None,
        **jobs: Unpack[Choice],
    ) -> dict[JobState, int]:
        """How many jobs are in each state that has some."""
        request = pb.CountJobsRequest(
            namespace=self._session.namespace(namespace),
            filter=to_filter(**jobs),
        )
        answer = await self._session.call(self._session.stub.CountJobs, request)
        _warn(answer.partial)
        return {to_state(one.state): one.count for one in answer.counts}

    async def cancel_many(
        self,
        *,
        reason: str = "",
        dry_run: bool = False,
        namespace: str | None = None,
        **jobs: Unpack[Choice],
    ) -> int:
        """Cancels all that match and have not ended; how many. `dry_run` only counts."""
        request = pb.CancelJobsRequest(
            namespace=self._session.namespace(namespace),
            filter=to_filter(**jobs),
            dry_run=dry_run,
            reason=reason,
        )
        count = 0
        while True:
            answer = await self._session.call(self._session.stub.CancelJobs, request)
            count += answer.count
            _warn(answer.partial)
            if not answer.next_page_token:
                return count
            request.page_token = answer.next_page_token

    async def retry(self, job_id: str, *, namespace: str | None = None) -> AsyncJobHandle:
        """Starts a job that ended without success over, as a new job with the same content.

        While one that an earlier call made is live, that one is returned (`existing`).
        """
        space = self._session.namespace(namespace)
        request = pb.RetryJobRequest(namespace=space, job_id=job_id)
        # Not repeated: the first try may have made a job that has ended already.
        answer = await self._session.call(self._session.stub.RetryJob, request, repeat=False)
        return AsyncJobHandle(self._session, answer.job.id, space, existing=answer.existing)

    async def retry_many(
        self,
        *,
        dry_run: bool = False,
        namespace: str | None = None,
        **jobs: Unpack[Choice],
    ) -> int:
        """Starts all that match, ended without success and were not retried before over; how many.

        `dry_run` only counts.
        """
        request = pb.RetryJobsRequest(
            namespace=self._session.namespace(namespace),
            filter=to_filter(**jobs),
            dry_run=dry_run,
        )
        count = 0
        while True:
            answer = await self._session.call(self._session.stub.RetryJobs, request)
            count += answer.count
            _warn(answer.partial)
            if not answer.next_page_token:
                return count
            request.page_token = answer.next_page_token

    async def update(
        self,
        job_id: str,
        *,
        at: datetime | None = None,
        now: bool = False,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        version: int = 0,
        namespace: str | None = None,
    ) -> Job:
        """Changes a job that waits: its time (`at`, or `now`), priority, or all its labels.

        With `version`, only if the job is still the one that was read.
        """
        spec = job_pb2.JobSpec(priority=priority or 0, labels=dict(labels or {}))
        if at is not None:
            spec.schedule_time.CopyFrom(to_timestamp(at, "at"))
        named = {"schedule_time": at is not None or now, "priority": priority is not None}
        named["labels"] = labels is not None
        request = pb.UpdateJobRequest(
            namespace=self._session.namespace(namespace),
            job_id=job_id,
            job=spec,
            update_mask=FieldMask(paths=[path for path, wanted in named.items() if wanted]),
            version=version,
        )
        # A repeated call with a version would find the one it made itself.
        answer = await self._session.call(
            self._session.stub.UpdateJob, request, repeat=version == 0
        )
        return to_job(answer.job)


def to_explanation(answer: pb.ExplainJobResponse) -> Explanation:
    start = answer.estimated_start_time
    return Explanation(
        reason=pb.WaitReason.Name(answer.reason).removeprefix("WAIT_REASON_"),
        text=answer.explanation,
        position=answer.position,
        position_capped=answer.position_capped,
        start_time=to_datetime(start) if answer.HasField("estimated_start_time") else None,
        message=answer,
        waits_for=tuple(answer.blocking_job_ids),
    )


def _warn(partial: bool) -> None:
    if partial:
        log.warning("some shards are away: their jobs are not counted")
