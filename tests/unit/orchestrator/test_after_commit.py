"""What is committed is not told as certainly not done if only the look at it afterwards fails."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.runtime import Readiness
from services.mesh.store.answers import JobChange, ProbeResult
from services.orchestrator.app.changes import Changes
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.schedules import Schedules
from services.orchestrator.app.shards import Shards

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = UUID(int=1)


class GoneAfterwards:
    """A shard that commits, and is away when it is asked again."""

    name = "s0"

    async def trigger_schedule(self, *_: Any) -> Any:
        return SimpleNamespace(job_id=JOB, type="t", events=[])

    async def change(self, *_: Any) -> Any:
        event = SimpleNamespace(type="t", due_time=None, time=NOW)
        return SimpleNamespace(event=event)

    async def get_jobs(self, *_: Any, **__: Any) -> Any:
        raise ShardUnavailable(self.name)


class Deaf:
    async def committed(self, *_: Any) -> None: ...

    async def due(self, *_: Any, **__: Any) -> None: ...


class Home:
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
