"""Which shards that answer are used."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from services.mesh.clock import ManualClock
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult
from services.orchestrator.app.shards import Prober, Shards

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Shard:
    name = "s0"

    def __init__(self) -> None:
        self.answer = ProbeResult(NOW, UUID(int=1), 1, True, 1)
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1

    async def migrate(self) -> list[str]:
        return []

    async def probe(self, timeout: float) -> ProbeResult:
        return self.answer


async def test_a_shard_that_may_lose_commits_gets_no_jobs() -> None:
    shard, clock = Shard(), ManualClock(NOW)
    shards = Shards({"s0": shard}, clock, Readiness().require("shards"))  # type: ignore[dict-item]
    prober = Prober(shards, shard, clock, 0.001)  # type: ignore[arg-type]
    for _ in range(3):
        await prober.run_once()
    assert shards.usable() == ["s0"]
    shard.answer = replace(shard.answer, durable=False)
    for _ in range(3):
        await prober.run_once()
    assert shards.usable() == []
    assert "synchronous_commit" in shards.views()["s0"].last_error
    assert shard.abandoned == 1
