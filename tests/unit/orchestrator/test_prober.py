"""Which shards that answer are used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from services.mesh.clock import ManualClock
from services.mesh.errors import ShardUnavailable
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult
from services.orchestrator.app.shards import (
    AWAY_TIMEOUT,
    NOBODYS,
    PROBE_TIMEOUT,
    UNUSED,
    Prober,
    Shards,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Shard:
    name = "s0"

    def __init__(self) -> None:
        self.answer = ProbeResult(NOW, UUID(int=1), 1, True, 1)
        self.abandoned = self.answers = 0
        self.hangs = False
        self.meanwhile = 0
        self.on_probe: Callable[[], None] = lambda: None
        self.timeouts: list[float] = []
        self.tell_slow: Callable[[], None] = lambda: None

    def abandon(self) -> None:
        self.abandoned += 1

    def when_slow(self, tell: Callable[[], None]) -> None:
        self.tell_slow = tell

    async def migrate(self) -> list[str]:
        return []

    async def probe(self, timeout: float) -> ProbeResult:
        self.timeouts.append(timeout)
        self.on_probe()
        self.answers += self.meanwhile
        if self.hangs:
            raise ShardUnavailable(self.name) from TimeoutError()
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


def _probed() -> tuple[Shard, Shards, Prober]:
    """A prober whose shard is healthy."""
    shard, clock = Shard(), ManualClock(NOW)
    shards = Shards({"s0": shard}, clock, Readiness().require("shards"))  # type: ignore[dict-item]
    prober = Prober(shards, shard, clock, 0.001)  # type: ignore[arg-type]
    for _ in range(2):
        shards.probed("s0", shard.answer, 1.0)
    return shard, shards, prober


async def test_a_shard_that_answers_others_is_not_away_because_it_is_slow() -> None:
    shard, shards, prober = _probed()
    shard.hangs, shard.meanwhile = True, 1
    for _ in range(5):
        assert await prober.run_once() == {"slow": 1}
    assert shards.usable() == ["s0"]
    shard.meanwhile = 0
    for _ in range(3):
        await prober.run_once()
    assert shards.usable() == []


async def test_a_shard_that_answers_others_and_may_not_be_written_is_away() -> None:
    shard, shards, prober = _probed()
    shard.answer, shard.meanwhile = replace(shard.answer, writable=False), 1
    for _ in range(3):
        await prober.run_once()
    assert shards.usable() == []


async def test_a_shard_that_is_away_has_more_time_to_come_back() -> None:
    shard, _, prober = _probed()
    shard.hangs = True
    for _ in range(4):
        await prober.run_once()
    assert shard.timeouts == [PROBE_TIMEOUT] * 3 + [AWAY_TIMEOUT]


async def test_a_probe_that_was_waited_for_is_followed_by_the_next_at_once() -> None:
    shard, clock = Shard(), ManualClock(NOW)
    shards = Shards({"s0": shard}, clock, Readiness().require("shards"))  # type: ignore[dict-item]
    prober = Prober(shards, shard, clock, 3600.0)  # type: ignore[arg-type]
    shard.hangs, shard.on_probe = True, partial(clock.advance, 3600.0)
    async with asyncio.timeout(10):
        assert await prober.run_once() == {"missed": 1}


async def test_a_shard_that_nobody_uses_is_asked_less_often() -> None:
    shard, _, prober = _probed()
    used = prober.rest()
    shard.meanwhile = 1  # the probe itself
    await prober.run_once()
    await prober.run_once()
    assert prober.rest() == UNUSED * used
    shard.answers += NOBODYS  # somebody reads the load
    await prober.run_once()
    assert prober.rest() == UNUSED * used
    shard.answers += NOBODYS + 1
    await prober.run_once()
    assert prober.rest() == used
