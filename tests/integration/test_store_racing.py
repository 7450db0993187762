"""Random scripts of several actors at once on one real Postgres: whoever wins, nobody wins twice.

Which actor is first is up to the machine, so there is no model of what each answer must be. What is
checked is what must hold in every order: the answers together must fit the events, and the auditor
reads the tables.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.mesh.errors import MeshError
from services.mesh.jobs.model import Claimed, Payload
from services.mesh.jobs.reports import (
    Failed,
    HandedBack,
    Report,
    ReportOutcome,
    Started,
    Succeeded,
)
from services.mesh.jobs.retry import Backoff, Failure, RetryPolicy
from services.mesh.jobs.states import TERMINAL, Cause, JobState
from services.mesh.store.answers import CancelOutcome, JobChange, RedriveOutcome
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.queries import Queries
from services.mesh.store.settings import StoreSettings
from tests.integration.store_rig import EPOCH, Rig, audit, new_job

ACTORS = 4
RETRY = RetryPolicy(Backoff.FIXED, 3, initial_delay=timedelta(0))
ENDS = (Cause.SUCCEEDED, Cause.FAILED, Cause.RETRY, Cause.HANDED_BACK, Cause.LATE_COMMIT)
DEEDS = ("claim", "claim", "start", "succeed", "succeed", "fail", "hand_back", "cancel")
DEEDS += ("sweep", "rescue", "change", "redrive", "put")

#: What to do, to which job, and whether as the one who holds it or as somebody woken up late.
Deed = tuple[str, int, bool]
SCRIPTS = st.lists(
    st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 30), st.booleans()), max_size=20),
    min_size=ACTORS,
    max_size=ACTORS,
)


@dataclass
class Race:
    """The jobs that all actors see, and every answer that any of them got."""

    store: PostgresShard
    jobs: list[UUID]
    claims: list[tuple[Claimed, str]] = field(default_factory=list)
    accepted: list[Report] = field(default_factory=list)
    cancelled: list[UUID] = field(default_factory=list)
    redriven: list[tuple[UUID, UUID | None]] = field(default_factory=list)

    async def run(self, scripts: list[list[Deed]]) -> None:
        acting = [
            asyncio.create_task(self._act(f"w{n}", script), name=f"w{n}")
            for n, script in enumerate(scripts)
        ]
        try:
            await asyncio.gather(*acting)
        finally:
            # Where one found something, the others give their connections back before all ends.
            for actor in acting:
                actor.cancel()
            await asyncio.gather(*acting, return_exceptions=True)

    async def _act(self, name: str, script: list[Deed]) -> None:
        mine: list[Claimed] = []
        for deed, pick, late in script:
            if deed in ("start", "succeed", "fail", "hand_back"):
                await self._report(deed, name, mine, pick, late)
            elif deed == "claim":
                mine += (await self.store.claim("t", name, 1 + pick % 3)).jobs
                self.claims += [(job, name) for job in mine if (job, name) not in self.claims]
            else:
                await getattr(self, f"_{deed}")(self.jobs[pick % len(self.jobs)], pick)

    async def _report(
        self, deed: str, name: str, mine: list[Claimed], pick: int, late: bool
    ) -> None:
        held = self.claims if late else [(job, name) for job in mine[-1:]]
        if not held:
            return
        job, worker = held[pick % len(held)]
        report = _reports(job, worker)[deed]
        (result,) = (await self.store.report([report])).results
        if result.outcome is ReportOutcome.COMMITTED:
            self.accepted.append(report)

    async def _cancel(self, job_id: UUID, _: int) -> None:
        (result,) = (await self.store.cancel([job_id])).results
        if result.outcome is CancelOutcome.CANCELLED:
            self.cancelled.append(job_id)

    async def _sweep(self, job_id: UUID, _: int) -> None:
        fences = [job.fence for job, _ in self.claims if job.id == job_id]
        if fences:
            await self.store.sweep([(job_id, max(fences))])

    async def _rescue(self, _: UUID, pick: int) -> None:
        await self.store.rescue([f"w{pick % ACTORS}"])

    async def _change(self, job_id: UUID, pick: int) -> None:
        await self.store.change(job_id, "n", JobChange(True, None, pick % 4, {"p": str(pick)}))

    async def _redrive(self, job_id: UUID, _: int) -> None:
        wish = {job_id: new_job().id}
        (result,) = (await self.store.redrive(wish, "n", EPOCH)).results
        if result.outcome in (RedriveOutcome.CREATED, RedriveOutcome.EXISTING):
            self.redriven.append((job_id, result.redrive_id))

    async def _put(self, _: UUID, __: int) -> None:
        job = new_job(retry=RETRY)
        await self.store.put_jobs([job], EPOCH)
        self.jobs.append(job.id)

    async def check(self) -> None:
        """What must hold, whoever was first."""
        taken = Counter((job.id, job.fence) for job, _ in self.claims)
        assert all(count == 1 for count in taken.values()), "a fence was given out twice"
        ids = [*self.jobs, *{new for _, new in self.redriven if new is not None}]
        events = await self.store.events_after([(job_id, 0) for job_id in set(ids)])
        ended = Counter(event.job_id for event in events if event.state in TERMINAL)
        assert all(count == 1 for count in ended.values()), "a job ended twice"
        assert Counter(self.cancelled) == Counter(
            event.job_id for event in events if event.cause is Cause.CANCELLED
        ), "each cancel that was told to have won is one event"
        given = {(e.job_id, e.fence): e.cause for e in events if e.cause in ENDS}
        for report in self.accepted:
            if isinstance(report, Started):
                continue
            assert given.get((report.job_id, report.fence)) in _causes(report), "an end made up"
        await self._check_outputs()

    async def _check_outputs(self) -> None:
        won = {r.job_id: r for r in self.accepted if isinstance(r, Succeeded)}
        records = await self.store.get_jobs(list(won), payloads=True)
        for record in records:
            assert record.state is JobState.SUCCEEDED
            assert record.output == won[record.id].output, "the output of another attempt"
        assert len(records) == len(won)


def _reports(job: Claimed, worker: str) -> dict[str, Report]:
    who = (job.id, job.fence, worker)
    return {
        "start": Started(*who),
        "succeed": Succeeded(*who, Payload.inline(f"{job.fence}/{worker}".encode())),
        "fail": Failed(*who, Failure("E", "")),
        "hand_back": HandedBack(*who),
    }


def _causes(report: Report) -> tuple[Cause, ...]:
    if isinstance(report, Succeeded):
        return (Cause.SUCCEEDED, Cause.LATE_COMMIT)
    return (Cause.FAILED, Cause.RETRY) if isinstance(report, Failed) else (Cause.HANDED_BACK,)


class Track:
    """One shard that lives through all races."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rig: Rig) -> None:
        self._loop, self._rig = loop, rig

    def race(self, scripts: list[list[Deed]]) -> None:
        self._loop.run_until_complete(self._race(scripts))
        audit(self._rig.dsn)
        self._rig.sql("TRUNCATE jobs, event_rows, queue, in_flight, commits, job_terms")

    async def _race(self, scripts: list[list[Deed]]) -> None:
        race = Race(self._rig.store, await self._rig.put(4, retry=RETRY))
        await race.run(scripts)
        await race.check()


@contextmanager
def opened_track(dsn: str, queries: Queries) -> Iterator[Track]:
    loop = asyncio.new_event_loop()
    store = PostgresShard("s0", dsn, StoreSettings(max_connections=ACTORS))
    store._queries = queries
    loop.run_until_complete(store.migrate())
    loop.run_until_complete(store.open())
    try:
        yield Track(loop, Rig(dsn, store))
    finally:
        loop.run_until_complete(store.close())
        loop.close()


def test_racing_actors_never_win_twice(shard_dsn: str) -> None:
    with opened_track(shard_dsn, Queries.load()) as track:

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(scripts=SCRIPTS)
        def races(scripts: list[list[Deed]]) -> None:
            track.race(scripts)

        races()


# A race nobody has seen lost proves nothing: each of these breaks one guard of one statement.
MUTANTS = {
    "a success without a fence": ("succeed", "j.dispatch_no = r.fence AND ", ""),
    "a success after the end": ("succeed", "j.state IN (1, 2, 3)", "true"),
    "a cancel after the end": ("cancel", " AND j.state IN (1, 2, 3, 8)", ""),
    "a claim that mints no fence": ("claim", "j.dispatch_no + 1", "j.dispatch_no"),
}


#: By the checks above, or by a constraint of the tables.
FOUND = (AssertionError, MeshError, psycopg.IntegrityError)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_races_find_broken_guards(shard_dsn: str, mutant: str) -> None:
    name, guard, instead = MUTANTS[mutant]
    queries = Queries.load()
    broken = queries[name].sql.replace(guard, instead)
    assert broken != queries[name].sql
    queries.by_name[name] = replace(queries[name], sql=broken)
    with opened_track(shard_dsn, queries) as track, pytest.raises(FOUND):
        _many_races(track, Random(11))


def _many_races(track: Track, random: Random) -> None:
    for _ in range(80):
        track.race([[_deed(random) for _ in range(25)] for _ in range(ACTORS)])


def _deed(random: Random) -> Deed:
    return random.choice(DEEDS), random.randrange(31), random.random() < 0.4
