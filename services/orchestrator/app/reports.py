"""Workers' reports, coalesced: one statement per shard takes what came in during the last one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from services.mesh.clock import Clock
from services.mesh.errors import MeshError
from services.mesh.jobs.ids import bucket_of_bytes
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.reports import Report, ReportOutcome, Successes
from services.mesh.jobs.states import JobState
from services.mesh.runtime import Tasks
from services.mesh.telemetry.metrics import Metrics
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.domain.dueness import DueWork, due_work
from services.orchestrator.ports import Announcer

log = logging.getLogger(__name__)

#: Most reports in one statement.
BATCH = 1000


@unique
class Verdict(Enum):
    """What the row said to one report; RETRY means that it could not be asked."""

    COMMITTED = "committed"
    STALE = "stale"
    RETRY = "retry"
    INVALID = "invalid"


_VERDICTS = {
    ReportOutcome.COMMITTED: Verdict.COMMITTED,
    ReportOutcome.STALE: Verdict.STALE,
    ReportOutcome.NOT_FOUND: Verdict.INVALID,
}


@dataclass(slots=True)
class _Batch:
    said: Sequence[Report] | Successes
    verdicts: asyncio.Future[list[Verdict]]


class Committer:
    """Writes the reports for one shard, one statement at a time, as many as there are."""

    def __init__(
        self, shard: str, shards: Shards, announcer: Announcer, metrics: Metrics, clock: Clock
    ) -> None:
        self._shard, self._shards, self._announcer = shard, shards, announcer
        self._clock = clock
        self._waiting: list[_Batch] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        count = metrics.counter("reports", "Reports by what the row said.", ("verdict",))
        self._counts = {verdict: count.labels(verdict.value) for verdict in Verdict}
        self._size = metrics.histogram(
            "report_batch_size", "Reports per statement.", buckets=(1, 2, 5, 10, 50, 100, 500, 1000)
        )

    def submit(self, said: Sequence[Report] | Successes) -> asyncio.Future[list[Verdict]]:
        """One verdict per report, in order, when they are written."""
        future: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Batch(said, future))
        self._idle.clear()
        self._wake.set()
        return future

    async def idle(self) -> None:
        """Return when everything submitted has been answered."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            batches = self._take()
            await self._commit(batches)
            if not self._waiting:
                self._wake.clear()
                self._idle.set()

    def _take(self) -> list[_Batch]:
        taken: list[_Batch] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0].said) <= BATCH):
            taken.append(self._waiting.pop(0))
            size += len(taken[-1].said)
        return taken

    async def _commit(self, batches: list[_Batch]) -> None:
        successes = [batch.said for batch in batches if isinstance(batch.said, Successes)]
        reports = [r for b in batches if not isinstance(b.said, Successes) for r in b.said]
        verdicts = await self._write(reports, successes)
        # Those in columns are answered first; but who said something first hears of it first, or a
        # worker takes the verdict on an attempt's progress for that on its end.
        columns, others = 0, sum(map(len, successes))
        for batch in batches:
            if isinstance(batch.said, Successes):
                at, columns = columns, columns + len(batch.said)
            else:
                at, others = others, others + len(batch.said)
            if not batch.verdicts.done():
                batch.verdicts.set_result(verdicts[at : at + len(batch.said)])

    async def _write(
        self, reports: list[Report], successes: Sequence[Successes] = ()
    ) -> list[Verdict]:
        """The verdicts on successes that came in columns, then those on reports.

        Never raises: a shard that is away or an unknown outcome is RETRY; replays are safe. Reports
        of many workers share a statement. One that the database cannot take is found by halving and
        is INVALID; it must not hold up the others, nor end this process.
        """
        count = sum(map(len, successes)) + len(reports)
        self._size.observe(count)
        began = self._clock.monotonic()
        try:
            answer = await self._shards.store(self._shard).report(reports, successes)
        except MeshError as error:
            self._shards.doubt(self._shard)
            extra = {"action": "reports_deferred", "shard": self._shard, "count": count}
            log.warning("cannot commit reports now: %s", error, extra=extra)
            return self._counted([Verdict.RETRY] * count)
        except Exception:
            if successes:
                return await self._write([r for s in successes for r in s.reports()] + reports)
            if len(reports) > 1:
                half = len(reports) // 2
                return await self._write(reports[:half]) + await self._write(reports[half:])
            extra = {"action": "report_refused", "job_id": str(reports[0].job_id)}
            log.exception("cannot store a report", extra=extra)
            return self._counted([Verdict.INVALID])
        if answer.progress:
            # First: after the end of a job nobody listens any more.
            await self._announcer.progressed(self._shard, answer.progress)
        await self._announcer.committed(self._shard, answer.events, answer.columns)
        due = work_due_again(answer.events, self._clock.monotonic() - began)
        if due:
            await self._announcer.due(self._shard, due.now, due.soon, due.long)
        outcomes = answer.outcomes + [result.outcome for result in answer.results]
        return self._counted([_VERDICTS[outcome] for outcome in outcomes])

    def _counted(self, verdicts: list[Verdict]) -> list[Verdict]:
        for verdict, counter in self._counts.items():
            if count := verdicts.count(verdict):
                counter.inc(count)
        return verdicts


def work_due_again(events: Iterable[JobEvent], took: float) -> DueWork:
    """Jobs that went back to SCHEDULED and are due again now or within seconds."""
    again = (event for event in events if event.state is JobState.SCHEDULED)
    return due_work(((event.type, event.due_time, event.time) for event in again), took)


class Reports:
    """Routes reports to the committers of their shards."""

    def __init__(
        self,
        shards: Shards,
        topology: TopologyKeeper,
        announcer: Announcer,
        tasks: Tasks,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._topology, self._tasks = topology, tasks
        self._committers = {
            name: Committer(name, shards, announcer, metrics, clock) for name in shards.names
        }

    def submit(
        self, reports: Sequence[Report]
    ) -> list[tuple[list[Report], asyncio.Future[list[Verdict]]]]:
        """Hand reports in; the verdicts come shard by shard, so that none waits for another."""
        groups: dict[str, list[Report]] = {}
        for report in reports:
            groups.setdefault(self._topology.shard_of(report.job_id), []).append(report)
        return [(group, self._submit(name, group)) for name, group in groups.items()]

    def submit_successes(
        self, said: Successes
    ) -> list[tuple[Successes, asyncio.Future[list[Verdict]]]]:
        """The same, of successes in columns."""
        shard_of = self._topology.map.shard_of
        shards = [shard_of(bucket_of_bytes(key)) for key in said.keys]
        if shards.count(shards[0]) == len(shards):  # a batch came from one shard, mostly
            return [(said, self._submit(shards[0], said))]
        places: dict[str, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        parts = [(shard, said.part(group)) for shard, group in places.items()]
        return [(part, self._submit(shard, part)) for shard, part in parts]

    def _submit(
        self, shard: str, group: Sequence[Report] | Successes
    ) -> asyncio.Future[list[Verdict]]:
        committer = self._committers.get(shard)
        if committer is not None:
            return committer.submit(group)
        nowhere: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        nowhere.set_result([Verdict.RETRY] * len(group))
        return nowhere

    async def start(self) -> None:
        for name, committer in self._committers.items():
            self._tasks.spawn(committer.run(), f"committer {name}")

    async def stop(self) -> None:
        """The tasks end with the process, after `finish`."""

    async def finish(self, timeout: float) -> None:
        await asyncio.gather(*(committer.idle() for committer in self._committers.values()))
