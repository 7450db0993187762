"""Verdicts are told in the order in which the reports were said."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from services.mesh.clock import SystemClock
from services.mesh.jobs.reports import ReportOutcome, ReportResult, Started, Successes
from services.mesh.store.answers import ReportAnswer
from services.mesh.telemetry.metrics import Metrics
from services.orchestrator.app.reports import Committer, Verdict

JOB = UUID(int=1)


class Store:
    """The start is stale, the end is committed: as after a rescue, when the zombie was first."""

    async def report(self, reports: Any, successes: Any) -> ReportAnswer:
        results = [ReportResult(r.job_id, r.fence, ReportOutcome.STALE, None) for r in reports]
        outcomes = [ReportOutcome.COMMITTED for said in successes for _ in said.keys]
        return ReportAnswer(results, [], outcomes=outcomes)


class Shards:
    def store(self, name: str) -> Store:
        return Store()


class Announcer:
    async def committed(self, *_: Any) -> None: ...


async def test_who_said_something_first_hears_of_it_first() -> None:
    around: Any = (Shards(), Announcer(), Metrics(), SystemClock())
    committer = Committer("s0", *around)
    heard: list[list[Verdict]] = []
    start = Started(JOB, 1, "w")
    end = Successes("w", [JOB.bytes], [1], [0], None, "")
    for said in ([start], end, [start]):
        committer.submit(said).add_done_callback(lambda future: heard.append(future.result()))
    running = asyncio.create_task(committer.run())
    await committer.idle()
    await asyncio.sleep(0)
    running.cancel()
    assert heard == [[Verdict.STALE], [Verdict.COMMITTED], [Verdict.STALE]]
