"""What is committed is not told as certainly not done if only the look at it afterwards fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.clock import ManualClock
from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.states import JobState
from services.mesh.runtime import Readiness
from services.mesh.store.answers import (
    CancelAnswer,
    CancelOutcome,
    CancelResult,
    JobChange,
    ProbeResult,
    RedriveAnswer,
    RedriveOutcome,
    RedriveResult,
)
from services.orchestrator.app.changes import Changes
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.schedules import Schedules
from services.orchestrator.app.shards import Shards
from services.orchestrator.servicer import OrchestratorServicer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB, OTHER, ENDED = (new_job_id(1, 1_700_000_000_000, Random(n)) for n in range(3))


class GoneAfterwards:
    """A shard that commits, and is away when it is asked again."""

    name = "s0"

    async def trigger_schedule(self, *_: Any) -> Any:
        return SimpleNamespace(job_id=JOB, type="t", events=[])

    async def change(self, *_: Any) -> Any:
        event = SimpleNamespace(type="t", due_time=None, time=NOW)
        return SimpleNamespace(event=event)

    async def cancel(self, ids: Sequence[UUID], *_: Any) -> CancelAnswer:
        outcomes = {JOB: CancelOutcome.CANCELLED, OTHER: CancelOutcome.UNRESOLVED}
        ended = outcomes.get(ids[0], CancelOutcome.ALREADY_TERMINAL)
        return CancelAnswer([CancelResult(ids[0], ended, JobState.CANCELLED)], [])

    async def redrive(self, ids: Mapping[UUID, UUID], *_: Any) -> RedriveAnswer:
        made = [RedriveResult(i, RedriveOutcome.CREATED, ids[i], JobState.SCHEDULED) for i in ids]
        return RedriveAnswer(made, [])

    async def get_jobs(self, *_: Any, **__: Any) -> Any:
        raise ShardUnavailable(self.name)


class Deaf:
    async def committed(self, *_: Any) -> None: ...

    async def due(self, *_: Any, **__: Any) -> None: ...


class Home:
    map = SimpleNamespace(epoch=1)

    def shard_of(self, job_id: UUID) -> str:
        return "s0"

    def shard_for_key(self, namespace: str, key: str) -> str:
        return "s0"


def shards_of() -> Shards:
    store, ready = cast(Any, GoneAfterwards()), Readiness().require("shards")
    shards = Shards({"s0": store}, ManualClock(NOW), ready)
    for _ in range(2):
        shards.probed("s0", ProbeResult(NOW, UUID(int=1), 1, True, 1), 1.0)
    return shards


async def test_a_run_by_hand_is_not_told_as_not_made() -> None:
    """Who hears that the shard was away triggers it once more."""
    home, deaf = cast(Any, Home()), cast(Any, Deaf())
    schedules = Schedules(shards_of(), home, deaf, ManualClock(NOW), Random(1))
    with pytest.raises(OutcomeUnknown):
        await schedules.trigger("n", "nightly")


async def test_a_change_is_not_told_as_not_done() -> None:
    shards, home, deaf = shards_of(), cast(Any, Home()), cast(Any, Deaf())
    lookup = Lookup(shards, home, deaf)
    changes = Changes(lookup, shards, home, deaf, ManualClock(NOW), Random(1))
    with pytest.raises(OutcomeUnknown):
        await changes.update(JOB, "n", JobChange(priority=1))


async def cancelled(job_id: UUID) -> str:
    """What is told of the cancel of a job."""
    servicer = OrchestratorServicer.__new__(OrchestratorServicer)
    servicer._lookup = Lookup(shards_of(), cast(Any, Home()), cast(Any, Deaf()))
    asked = pb.OrchestratorServiceCancelJobsRequest(namespace="n", job_ids=[str(job_id)])
    (result,) = (await servicer.CancelJobs(asked, cast(Any, None))).results
    return result.error.reason


async def test_a_cancel_is_not_told_as_not_done() -> None:
    assert await cancelled(JOB) == "OUTCOME_UNKNOWN"
    assert await cancelled(ENDED) == "SHARD_UNAVAILABLE", "it did nothing"
    assert await cancelled(OTHER) == "SHARD_UNAVAILABLE", "nor here"


async def test_a_redrive_is_not_told_as_not_made() -> None:
    shards, home, deaf = shards_of(), cast(Any, Home()), cast(Any, Deaf())
    lookup = Lookup(shards, home, deaf)
    changes = Changes(lookup, shards, home, deaf, ManualClock(NOW), Random(1))
    (answer,) = await changes.redrive([JOB], "n", "")
    assert isinstance(answer, OutcomeUnknown)
