"""How often the load is read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import ShardUnavailable
from services.mesh.jobs.model import BacklogStat
from services.orchestrator.app.stats import CALM, Statistics

SPACING = 0.2


def waiting(due: int) -> BacklogStat:
    return BacklogStat("echo", due, False, timedelta(0), 1, 0, None)


class Shard:
    """Answers with what it is given."""

    names = ("s0",)

    def __init__(self) -> None:
        self.answer: list[BacklogStat] | None = []

    def store(self, name: str) -> Shard:
        return self

    async def backlog(self, cap: int) -> list[BacklogStat]:
        if self.answer is None:
            raise ShardUnavailable("s0")
        return self.answer


class Rests:
    """Stands for the drain: remembers how long each rest was to be, and does not rest."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def is_set(self) -> bool:
        return False

    async def sleep(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False

    async def first(self, awaitable: Any) -> None:
        awaitable.close()


@pytest.mark.parametrize(
    ("found", "rest"),
    [
        pytest.param([waiting(1)], SPACING, id="something waits"),
        pytest.param([waiting(0)], SPACING * CALM, id="all is in flight"),
        pytest.param([], SPACING * CALM, id="nothing there"),
        pytest.param(None, SPACING, id="a shard that is away may hold some"),
    ],
)
async def test_the_load_is_read_less_often_while_nothing_waits(found, rest):
    shard, drain = Shard(), Rests()
    shard.answer = found
    statistics = Statistics(shard, ManualClock(), drain, SPACING, 100)  # type: ignore[arg-type]
    loads = statistics.stream(5.0)
    for _ in range(2):
        await anext(loads)
    await loads.aclose()
    assert drain.seconds == [rest]
