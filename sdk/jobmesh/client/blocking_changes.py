"""The blocking twins of `changes`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from jobmesh.client.changes import Choice
from jobmesh.model import Explanation, Job, JobState

if TYPE_CHECKING:
    from jobmesh.client.aio import AsyncClient
    from jobmesh.client.blocking import JobHandle, LoopThread


class BlockingChanges:
    """The part of Client that counts, retries, updates, and cancels by filter."""

    _thread: LoopThread
    _client: AsyncClient

    def explain(self, job_id: str, *, namespace: str | None = None) -> Explanation:
        """Why a job is not running: the dominant reason, its place in the queue, an estimate."""
        return self._thread.run(self._client.explain(job_id, namespace=namespace))

    def count(self, *, namespace: str | None = None, **jobs: Unpack[Choice]) -> dict[JobState, int]:
        """How many jobs are in each state that has some."""
        return self._thread.run(self._client.count(namespace=namespace, **jobs))

    def cancel_many(
        self,
        *,
        reason: str = "",
        dry_run: bool = False,
        namespace: str | None = None,
        **jobs: Unpack[Choice],
    ) -> int:
        """Cancels all that match and have not ended; how many. `dry_run` only counts."""
        return self._thread.run(
            self._client.cancel_many(reason=reason, dry_run=dry_run, namespace=namespace, **jobs)
        )

    def retry(self, job_id: str, *, namespace: str | None = None) -> JobHandle:
        """Starts a job that ended without success over, as a new job. See AsyncClient."""
        from jobmesh.client.blocking import JobHandle

        made = self._client.retry(job_id, namespace=namespace)
        return JobHandle(self._thread, self._thread.run(made))

    def retry_many(
        self, *, dry_run: bool = False, namespace: str | None = None, **jobs: Unpack[Choice]
    ) -> int:
        """Starts all that match and ended without success over; how many. See AsyncClient."""
        return self._thread.run(
            self._client.retry_many(dry_run=dry_run, namespace=namespace, **jobs)
        )

    def update(
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
        """Changes a job that waits: its time (`at`, or `now`), priority, or all its labels."""
        return self._thread.run(
            self._client.update(
                job_id,
                at=at,
                now=now,
                priority=priority,
                labels=labels,
                version=version,
                namespace=namespace,
            )
        )
