"""What handlers ask for gets into the settings of their types, beside what operators set."""

from __future__ import annotations

import logging

import pytest
from jobmesh.v1.retry_pb2 import RetryPolicy
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease import Entry, Keys
from services.mesh.lease.memory import MemoryRegistry, MemoryStore
from services.worker.adapters.declarations import TRIES, Declarations

KEYS = Keys()
KEY = KEYS.type_settings + "x"
FOUR, FIVE = RetryPolicy(max_attempts=4), RetryPolicy(max_attempts=5)


class Shared(MemoryRegistry):
    """A store in which operators change things too, and which may be away."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        #: How often an operator is quicker than whoever has just read.
        self.quicker = 0
        self.away = False

    async def get(self, key: str) -> Entry | None:
        if self.away:
            raise DependencyUnavailable("etcd", "away")
        found = await super().get(key)
        if self.quicker:
            await self.put(key, TypeSettings(max_running=self.quicker).SerializeToString())
            self.quicker -= 1
        return found

    async def settings(self) -> TypeSettings | None:
        entry = await super().get(KEY)
        return None if entry is None else TypeSettings.FromString(entry.value)


@pytest.fixture
def registry() -> Shared:
    return Shared()


def asks(policy: RetryPolicy | None) -> TypeSettings:
    return TypeSettings(handler_retry_policy=policy)


async def declare(registry: Shared, policy: RetryPolicy | None) -> None:
    await Declarations(registry, KEYS, {"x": asks(policy)}).make()


async def test_the_worker_that_started_last_is_believed(registry: Shared) -> None:
    for policy in (FOUR, FIVE):
        await declare(registry, policy)
        assert await registry.settings() == TypeSettings(handler_retry_policy=policy)
    await declare(registry, None)
    assert await registry.settings() == TypeSettings()


async def test_how_long_an_attempt_may_run_is_told_and_taken_back(registry: Shared) -> None:
    await registry.put(KEY, TypeSettings(max_running=3).SerializeToString())
    timed = TypeSettings(handler_run_timeout={"seconds": 30})
    await Declarations(registry, KEYS, {"x": timed}).make()
    assert await registry.settings() == TypeSettings(
        max_running=3, handler_run_timeout={"seconds": 30}
    )
    await declare(registry, None)
    assert await registry.settings() == TypeSettings(max_running=3)


async def test_nothing_is_written_that_says_nothing_new(registry: Shared) -> None:
    await declare(registry, None)
    assert await registry.get(KEY) is None
    await declare(registry, FOUR)
    before = await registry.get(KEY)
    await declare(registry, FOUR)
    assert await registry.get(KEY) == before


@pytest.mark.parametrize("quicker", [1, TRIES - 1])
async def test_what_an_operator_sets_meanwhile_stays(registry: Shared, quicker: int) -> None:
    registry.quicker = quicker
    await declare(registry, FOUR)
    assert await registry.settings() == TypeSettings(max_running=1, handler_retry_policy=FOUR)


async def test_a_worker_that_never_gets_its_turn_goes_on_without(
    registry: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    registry.quicker = TRIES
    await declare(registry, FOUR)
    assert await registry.settings() == TypeSettings(max_running=1)
    assert "not declared" in caplog.text


async def test_what_is_no_settings_is_left_alone(
    registry: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await registry.put(KEY, b"\xff\xff")
    await declare(registry, FOUR)
    found = await registry.get(KEY)
    assert found is not None
    assert found.value == b"\xff\xff"
    assert "not the settings of a type" in caplog.text


async def test_it_is_made_once_but_again_after_an_outage(registry: Shared) -> None:
    declarations = Declarations(registry, KEYS, {"x": asks(FOUR)})
    registry.away = True
    with pytest.raises(DependencyUnavailable):
        await declarations.make()
    registry.away = False
    await declarations.make()
    assert await registry.settings() == TypeSettings(handler_retry_policy=FOUR)
    # Another worker, with a newer handler, has started: a new identity of this one is no reason.
    await declare(registry, FIVE)
    await declarations.make()
    assert await registry.settings() == TypeSettings(handler_retry_policy=FIVE)
