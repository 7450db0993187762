"""A worker tells what its functions ask for before it tells that it serves them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.lease import Entry
from services.mesh.testing.waiting import eventually
from tests.integration.test_worker_leases import new_identity, revoke
from tests.integration.worker_rig import Rig, rigged

STUBBORN, PLAIN = "stubborn", "shout"
ASKED = TypeSettings(handler_retry_policy={"max_attempts": 9})


@pytest.fixture
async def rig(
    nats_url: str, etcd_endpoint: str, unique_prefix: str, tmp_path: Path
) -> AsyncIterator[Rig]:
    """Without a worker yet."""
    around = rigged(
        nats_url=nats_url,
        etcd=etcd_endpoint,
        prefix=unique_prefix,
        spool=tmp_path,
        types=(STUBBORN, PLAIN, "count"),
        commands='{"count": "wc -w"}',
    )
    async with around as made:
        yield made


async def entry(rig: Rig, type_: str) -> Entry | None:
    return await rig.registry.get(rig.keys.type_settings + type_)


async def settings(rig: Rig, type_: str) -> TypeSettings:
    found = await entry(rig, type_)
    assert found is not None
    return TypeSettings.FromString(found.value)


async def test_what_a_function_asks_for_stands_before_its_type_is_known(rig: Rig) -> None:
    await rig.start()
    assert (await settings(rig, STUBBORN)).handler_retry_policy.max_attempts == 4
    declared, known = await entry(rig, STUBBORN), await rig.registry.get(rig.keys.type(STUBBORN))
    assert declared is not None
    assert known is not None
    assert declared.revision < known.revision
    # Those who ask for nothing leave no trace.
    found = await rig.registry.entries(rig.keys.type_settings)
    assert [one.key for one in found] == [rig.keys.type_settings + STUBBORN]


async def test_what_an_operator_set_stays_and_what_another_handler_asked_for_goes(rig: Rig) -> None:
    for type_ in (STUBBORN, PLAIN, "count"):
        beside = TypeSettings(max_running=3, retry_policy={"max_attempts": 2})
        beside.MergeFrom(ASKED)
        await rig.registry.put(rig.keys.type_settings + type_, beside.SerializeToString())
    await rig.start()
    asked = {
        type_: (await settings(rig, type_)).handler_retry_policy.max_attempts
        for type_ in (STUBBORN, PLAIN)
    }
    assert asked == {STUBBORN: 4, PLAIN: 0}
    for type_ in (STUBBORN, PLAIN):
        kept = await settings(rig, type_)
        assert (kept.max_running, kept.retry_policy.max_attempts) == (3, 2)
    assert not (await settings(rig, PLAIN)).HasField("handler_retry_policy")
    # Of programs nothing is known, so nothing is said.
    assert (await settings(rig, "count")).handler_retry_policy == ASKED.handler_retry_policy


async def test_a_new_identity_does_not_take_a_newer_workers_word_back(rig: Rig) -> None:
    await rig.start()
    await rig.registry.put(rig.keys.type_settings + STUBBORN, ASKED.SerializeToString())
    await new_identity(rig, await revoke(rig))
    assert await settings(rig, STUBBORN) == ASKED
    # Nor does the last announcement, of the drain.
    assert await rig.stop() == 0
    assert await settings(rig, STUBBORN) == ASKED
    await rig.start()
    assert (await settings(rig, STUBBORN)).handler_retry_policy.max_attempts == 4


async def test_what_is_no_settings_stops_no_worker(rig: Rig) -> None:
    await rig.registry.put(rig.keys.type_settings + STUBBORN, b"\xff\xff")
    await rig.start()

    async def known() -> bool:
        return await rig.registry.get(rig.keys.type(STUBBORN)) is not None

    await eventually(known)
    found = await entry(rig, STUBBORN)
    assert found is not None
    assert found.value == b"\xff\xff"
