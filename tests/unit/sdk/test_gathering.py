"""Single submissions that come together: one message, and an answer of its own for each."""

from __future__ import annotations

import asyncio

import grpc
from jobmesh import AsyncClient
from jobmesh.errors import CallError

from services.mesh.errors import ShardUnavailable
from services.mesh.jobs.ids import bucket_for_key
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh


async def all_of(client: AsyncClient, count: int, **options: object) -> list[str]:
    calls = (client.enqueue("echo", n, **options) for n in range(count))  # type: ignore[arg-type]
    return [handle.id for handle in await asyncio.gather(*calls)]


async def test_one_after_the_other_they_go_alone(client: AsyncClient, mesh: MemoryMesh) -> None:
    for n in range(5):
        await client.enqueue("echo", n)
    assert len(mesh.calls["Enqueue"]) == 5
    assert not mesh.calls["EnqueueBatch"]


async def test_beside_each_other_they_share_messages(client: AsyncClient, mesh: MemoryMesh) -> None:
    ids = await all_of(client, 100)
    assert [mesh.records[i].job.spec.input.data for i in ids] == [b"%d" % n for n in range(100)]
    assert len(mesh.calls["Enqueue"]) == 4
    assert sum(len(call.items) for call in mesh.calls["EnqueueBatch"]) == 96
    assert len(mesh.calls["EnqueueBatch"]) <= 8


async def test_the_keys_of_a_message_have_one_place(client: AsyncClient, mesh: MemoryMesh) -> None:
    async def one_after_the_other() -> None:
        for n in range(10):
            await client.enqueue("echo", n)

    await asyncio.gather(*(one_after_the_other() for _ in range(30)))
    places = [
        {bucket_for_key(call.namespace, item.idempotency_key) for item in call.items}
        for call in mesh.calls["EnqueueBatch"]
    ]
    assert sum(map(len, places)) < 1.5 * len(places)
    assert len(set.union(*places)) > 1, "each message has a place of its own"


async def test_namespaces_do_not_share_messages(client: AsyncClient, mesh: MemoryMesh) -> None:
    await asyncio.gather(*(all_of(client, 20, namespace=name) for name in ("red", "blue")))
    spaces = [call.namespace for call in mesh.calls["EnqueueBatch"]]
    assert set(spaces) == {"red", "blue"}
    for name in ("red", "blue"):
        found = [r for r in mesh.records.values() if r.job.namespace == name]
        assert len(found) == 20
    assert not client._session._gatherings, "nothing is kept of namespaces at rest"


async def test_each_bears_its_own_mistakes_only(client: AsyncClient, mesh: MemoryMesh) -> None:
    types = ["echo"] * 10 + ["nobody"] + ["echo"] * 10
    calls = (client.enqueue(type_, n) for n, type_ in enumerate(types))
    results = await asyncio.gather(*calls, return_exceptions=True)
    wrong = [result for result in results if isinstance(result, BaseException)]
    assert len(mesh.records) == 20
    assert [getattr(error, "reason", "") for error in wrong] == ["UNKNOWN_TYPE"]


async def test_what_a_lost_batch_held_is_sent_again_and_exists_once(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(grpc.StatusCode.UNAVAILABLE, after=True)]
    ids = await all_of(client, 50)
    assert len(set(ids)) == len(mesh.records) == 50


async def test_an_item_whose_shard_is_away_goes_elsewhere(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["item"] = [Fault(error=ShardUnavailable("s1"))]
    ids = await all_of(client, 50)
    assert len(set(ids)) == len(mesh.records) == 50


async def test_whoever_goes_away_while_waiting_submits_nothing(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    first = [asyncio.create_task(client.enqueue("echo", n)) for n in range(4)]
    waiting = asyncio.create_task(client.enqueue("echo", "gone"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(*first)
    await client.enqueue("echo", "after")
    inputs = {record.job.spec.input.data for record in mesh.records.values()}
    assert b'"gone"' not in inputs
    assert len(inputs) == 5


async def test_waiting_counts_as_time_that_the_call_takes(address: str, mesh: MemoryMesh) -> None:
    mesh.hanging.add("Enqueue")
    async with AsyncClient(address, timeout=0.5, attempts=1) as client:
        calls = (client.enqueue("echo", n) for n in range(6))
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, CallError) for error in results)
    assert {error.status for error in results if isinstance(error, CallError)} == {
        "DEADLINE_EXCEEDED"
    }
