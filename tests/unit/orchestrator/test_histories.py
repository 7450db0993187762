"""Of a job with many attempts the newest are told, as many as an answer holds; never the oldest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from services.mesh.clock import ManualClock
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import Cause, JobState
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult
from services.orchestrator.app.lookup import Found, Lookup
from services.orchestrator.app.shards import Shards

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Row:
    id: UUID
    version: int
    namespace: str = "n"


class Busy:
    """A shard whose jobs were handed out and came back many times."""

    name = "s0"

    def __init__(self, dispatches: int, failure: Failure | None = None) -> None:
        self._dispatches, self._failure = dispatches, failure

    def _events(self, job_id: UUID) -> list[JobEvent]:
        rows = [(1, JobState.SCHEDULED, Cause.CREATED, 0, None)]
        for fence in range(1, self._dispatches + 1):
            at = 3 * fence
            rows += [
                (at - 1, JobState.DISPATCHED, Cause.CLAIMED, fence, None),
                (at, JobState.RUNNING, Cause.STARTED, fence, None),
                (at + 1, JobState.SCHEDULED, Cause.RETRY, fence, self._failure),  # type: ignore[list-item]
            ]
        return [
            JobEvent(
                job_id, version, state, cause, NOW, 1, fence, "w", None, failure, None, "n", "t"
            )
            for version, state, cause, fence, failure in rows
        ]

    async def get_jobs(self, ids: Sequence[UUID], payloads: bool = False) -> list[Row]:
        return [Row(job_id, 1 + 3 * self._dispatches) for job_id in ids]

    async def events_after(
        self, cursors: Sequence[tuple[UUID, int]], limit: int = 10_000
    ) -> list[JobEvent]:
        found = [e for job, after in cursors for e in self._events(job) if e.version > after]
        return found[:limit]


class Home:
    def shard_of(self, job_id: UUID) -> str:
        return "s0"


async def fences_of(shard: Busy, jobs: int = 1) -> list[list[int]]:
    shards = Shards({"s0": cast(Any, shard)}, ManualClock(NOW), Readiness().require("shards"))
    for _ in range(2):
        shards.probed("s0", ProbeResult(NOW, UUID(int=1), 1, True, 1), 1.0)
    lookup = Lookup(shards, cast(Any, Home()), cast(Any, None))
    found = await lookup.get([UUID(int=n) for n in range(jobs)], "n", full=True)
    assert all(isinstance(one, Found) for one in found)
    return [[a.fence for a in one.history.attempts] for one in found if isinstance(one, Found)]


async def test_all_attempts_are_told_while_they_are_as_many_as_a_policy_grants() -> None:
    assert await fences_of(Busy(1000)) == [list(range(1, 1001))]


async def test_of_more_the_newest_are_told() -> None:
    ((first, *_, last),) = await fences_of(Busy(5000))
    assert last == 5000
    assert first > 1, "and its number says that there were others"


async def test_jobs_that_are_read_together_share_the_room() -> None:
    for told in await fences_of(Busy(500), jobs=100):
        assert told, "each has some"
        assert told == list(range(told[0], 501))


async def test_attempts_with_long_failures_fit_an_answer() -> None:
    failure = Failure("E", "m" * 8_192, "t" * 16_384)
    ((*_, last),) = [told] = await fences_of(Busy(1000, failure))
    assert last == 1000
    assert len(told) * 24_576 <= 12 * 1024**2
    assert len(told) > 100
