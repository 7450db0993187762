"""A redrive that may have been stored is never denied."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import MeshError, OutcomeUnknown, ShardBusy, ShardUnavailable
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import RedriveAnswer, RedriveOutcome, RedriveResult
from services.orchestrator.app.changes import Changes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = new_job_id(7, 1, Random(1))


class Shard:
    """Says what it is told to say, call by call; then it stores."""

    name = "s0"

    def __init__(self, *errors: MeshError) -> None:
        self.errors = list(errors)
        self.wishes: list[Mapping[UUID, UUID]] = []

    async def redrive(self, wishes: Mapping[UUID, UUID], *_: Any) -> RedriveAnswer:
        self.wishes.append(wishes)
        if self.errors:
            raise self.errors.pop(0)
        made = RedriveOutcome.CREATED
        results = [RedriveResult(j, made, new, JobState.SCHEDULED) for j, new in wishes.items()]
        return RedriveAnswer(results, [])


class Surroundings:
    """Lookup, topology and announcer in one: a single shard, which is away when it is read."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.map = self
        self.epoch = 1

    def shard_of(self, job_id: UUID) -> str:
        return self.shard.name

    async def by_id(self, ids: list[UUID], ask: Any) -> list[Any]:
        try:
            found = await ask(self.shard, ids)
        except MeshError as error:
            return [error] * len(ids)
        return [found.get(job_id) for job_id in ids]

    async def get(self, ids: list[UUID], *_: Any, **__: Any) -> list[MeshError]:
        return [ShardUnavailable(self.shard.name) for _ in ids]

    async def committed(self, *_: Any) -> None:
        """Nobody listens."""


async def redriven(shard: Shard, wishes: Mapping[UUID, UUID] | None = None) -> Any:
    around = cast(Any, Surroundings(shard))
    changes = Changes(around, around, around, around, ManualClock(NOW), Random(1))
    (result,) = await changes.redrive([FAILED], "n", "", wishes or {})
    return result


async def test_one_that_was_stored_and_cannot_be_read_is_not_denied() -> None:
    result = await redriven(Shard())
    assert isinstance(result, OutcomeUnknown)


@pytest.mark.parametrize("second", [ShardUnavailable("s0"), ShardBusy("s0"), OutcomeUnknown("s0")])
async def test_one_that_may_be_stored_stays_unknown_if_the_shard_says_no_more(
    second: MeshError,
) -> None:
    shard = Shard(OutcomeUnknown("s0"), second)
    assert isinstance(await redriven(shard), OutcomeUnknown)
    assert shard.wishes[0] == shard.wishes[1]


async def test_one_that_is_not_stored_says_so() -> None:
    result = await redriven(Shard(ShardUnavailable("s0")))
    assert isinstance(result, ShardUnavailable)


async def test_the_caller_may_say_which_ids_the_new_ones_have() -> None:
    shard, wish = Shard(), new_job_id(7, 2, Random(2))
    await redriven(shard, {FAILED: wish})
    assert shard.wishes == [{FAILED: wish}]
