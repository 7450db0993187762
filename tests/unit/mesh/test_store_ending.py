"""Cancels of which only a part is known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from services.mesh.errors import ShardUnavailable
from services.mesh.store.answers import CancelOutcome
from services.mesh.store.ending import Ending

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING, OTHER = UUID(int=1), UUID(int=2)


class GoneAfterwards(Ending):
    """The shard commits the cancel, and is away when it is asked about the others."""

    def __init__(self, *cancelled: UUID) -> None:
        self._cancelled = cancelled

    async def _fetch(self, name: str, params: Any = None) -> list[Any]:
        if name != "cancel":
            raise ShardUnavailable("s0")
        return [(job_id, "n", "t", 4, 3, 1, 7, "w", NOW, None) for job_id in self._cancelled]


async def test_what_was_cancelled_is_told_though_the_rest_cannot_be_looked_at() -> None:
    answer = await GoneAfterwards(RUNNING).cancel([OTHER, RUNNING])
    unresolved, cancelled = answer.results
    assert unresolved.outcome is CancelOutcome.UNRESOLVED
    assert (cancelled.outcome, cancelled.worker_id, cancelled.fence) == (
        CancelOutcome.CANCELLED,
        "w",
        7,
    )
    assert [event.job_id for event in answer.events] == [RUNNING]


async def test_if_nothing_was_cancelled_that_is_certain() -> None:
    with pytest.raises(ShardUnavailable):
        await GoneAfterwards().cancel([OTHER])
