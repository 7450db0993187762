"""What is told of runs that are made by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import InvalidField
from services.mesh.jobs.recurrence import Interval
from services.mesh.jobs.schedules import Definition, JobTemplate
from services.mesh.runtime import Readiness
from services.mesh.store.answers import BackfillAnswer, ProbeResult
from services.orchestrator.app.schedules import Schedules
from services.orchestrator.app.shards import Shards

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class SlowShard:
    """Takes its time to commit."""

    name = "s0"

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    async def get_schedule(self, *_: Any) -> Any:
        return SimpleNamespace(definition=Definition((Interval(timedelta(1)),), JobTemplate("t")))

    async def trigger_schedule(self, *_: Any) -> Any:
        self._clock.advance(self._seconds)
        return SimpleNamespace(job_id=UUID(int=1), type="t", events=[])

    async def backfill_schedule(self, *_: Any) -> BackfillAnswer:
        self._clock.advance(self._seconds)
        return BackfillAnswer(1, 0, 0, None, [], [], "t")

    async def get_jobs(self, *_: Any, **__: Any) -> Any:
        return [SimpleNamespace()]


class Listener:
    def __init__(self) -> None:
        self.long: list[str] = []

    async def committed(self, *_: Any) -> None: ...

    async def due(
        self, shard: str, types: Iterable[str], soon: Any = None, long: Collection[str] = ()
    ) -> None:
        assert list(types) == ["t"]
        self.long += long


def schedules(clock: ManualClock, seconds: float, listener: Listener) -> Schedules:
    store = cast(Any, SlowShard(clock, seconds))
    shards = Shards({"s0": store}, clock, Readiness().require("shards"))
    for _ in range(2):
        shards.probed("s0", ProbeResult(NOW, UUID(int=1), 1, True, 1), 1.0)
    home = cast(Any, SimpleNamespace(shard_for_key=lambda *_: "s0"))
    return Schedules(shards, home, cast(Any, listener), clock, Random(1))


@pytest.mark.parametrize(("seconds", "long"), [(0.1, []), (0.6, ["t"])])
async def test_runs_by_hand_that_took_long_to_commit_are_said_to_be_long_due(
    seconds: float, long: list[str]
) -> None:
    """They are due since the transaction began, and claims look back half a second."""
    clock, listener = ManualClock(NOW), Listener()
    by_hand = schedules(clock, seconds, listener)
    await by_hand.trigger("n", "daily")
    assert listener.long == long
    await by_hand.backfill("n", "daily", NOW - timedelta(1), NOW, allow_many=False)
    assert listener.long == long * 2


FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)
DAILY = Definition((Interval(timedelta(1)),), JobTemplate("t"))


async def test_times_at_the_ends_of_the_calendar_are_refused_by_field() -> None:
    made = schedules(ManualClock(NOW), 0.0, Listener())
    for first, until in ((FIRST, None), (LAST, None), (FIRST, FIRST + timedelta(9)), (NOW, LAST)):
        with pytest.raises(InvalidField):
            await made.preview("n", DAILY, first, until, 10)
    with pytest.raises(InvalidField, match="1970"):
        await made.backfill("n", "daily", FIRST, NOW, allow_many=False)
