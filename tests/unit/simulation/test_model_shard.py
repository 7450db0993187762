"""The model of the shard follows the rules that Postgres is held to, by the same machine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.integration.test_store_machine import Histories, wander
from tests.simulation.shard import ModelShard


class Time:
    """Passes a little with each look, as a shard's does."""

    def __init__(self) -> None:
        self._now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(microseconds=10)
        return self._now


class ModelHistories(Histories):
    """The machine on a model of its own for each history."""

    def __init__(self) -> None:
        super().__init__()
        store: Any = ModelShard("s0", Time(), Random(1))
        self.rig = SimpleNamespace(store=store)  # type: ignore[assignment]

    def run(self, awaitable: Any) -> Any:
        return asyncio.run(awaitable)

    # The model has no ties between jobs.

    def put_child(self, picks: Any, policy: Any) -> None: ...

    def put_keyed(self, key: str) -> None: ...

    def release(self) -> None: ...

    def teardown(self) -> None:
        for row in self.rig.store.rows.values():
            versions = [event.version for event in row.events]
            assert versions == list(range(1, row.version + 1))
            assert row.events[-1].state is row.state


def test_the_model_follows_the_rules_of_the_store() -> None:
    wander(ModelHistories, Random(11), 30)
