"""Which shards that answer are used."""

from __future__ import annotations

from collections.abc import Callable
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
        self.tell_slow: Callable[[], None] = lambda: None

    def abandon(self) -> None:
        self.abandoned += 1

    def when_slow(self, tell: Callable[[], None]) -> None:
        self.tell_slow = tell

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


async def test_a_shard_that_keeps_somebody_waiting_is_asked_at_once() -> None:
    shard, clock = Shard(), ManualClock(NOW)
    shards = Shards({"s0": shard}, clock, Readiness().require("shards"))  # type: ignore[dict-item]
    prober = Prober(shards, shard, clock, 3600.0)  # type: ignore[arg-type]
    shards.probed("s0", shard.answer, 1.0)  # with the first pass it is healthy, and left alone
    await prober.start()
    try:
        await prober.passes.reached(1)
        shard.tell_slow()
        await prober.passes.reached(2)
    finally:
        await prober.stop()
