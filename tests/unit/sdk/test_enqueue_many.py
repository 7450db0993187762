"""Many jobs by one call: batches, and an ack for each."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from jobmesh import AsyncClient, InputError, NewJob
from jobmesh.client import EnqueueFailed
from jobmesh.errors import NotFound, Unavailable

from services.mesh.errors import OutcomeUnknown, Overloaded, ShardUnavailable
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def test_many_jobs_travel_in_batches_and_are_acknowledged_in_order(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    acks = await client.enqueue_many(NewJob("echo", n) for n in range(2500))
    assert sorted(len(call.items) for call in mesh.calls["EnqueueBatch"]) == [500, 1000, 1000]
    inputs = [mesh.records[ack.id].job.spec.input.data for ack in acks]
    assert inputs == [str(n).encode() for n in range(2500)]


async def test_a_batch_stays_below_the_message_cap(client: AsyncClient, mesh: MemoryMesh) -> None:
    await client.enqueue_many(NewJob("echo", b"x" * 700_000) for _ in range(12))
    sizes = [call.ByteSize() for call in mesh.calls["EnqueueBatch"]]
    assert len(sizes) == 3
    assert max(sizes) <= 4 * 1024 * 1024


async def test_one_bad_item_does_not_hinder_the_others(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    jobs = [NewJob("echo", 1), NewJob("nope"), NewJob("echo", object()), NewJob("echo", 2)]
    acks = await client.enqueue_many(jobs, raise_errors=False)
    assert [ack.ok for ack in acks] == [True, False, False, True]
    assert isinstance(acks[1].error, NotFound)
    assert isinstance(acks[2].error, InputError)
    with pytest.raises(EnqueueFailed, match="2 of 4 jobs were not stored") as caught:
        await client.enqueue_many(jobs)
    assert len(caught.value.acks) == 4


async def test_a_mesh_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_asks(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(Overloaded(retry_after=0.5))]
    clock = asyncio.get_running_loop().time
    began = clock()
    (ack,) = await client.enqueue_many([NewJob("echo")])
    assert ack.ok
    assert clock() - began >= 0.5
    assert len(mesh.calls["EnqueueBatch"]) == 2


async def test_items_that_failed_in_passing_are_sent_again_alone(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["item"] = [
        Fault(OutcomeUnknown("s1"), after=True),
        Fault(ShardUnavailable("s2")),
    ]
    acks = await client.enqueue_many([NewJob("echo", n) for n in range(4)])
    assert len(mesh.records) == 4
    assert len({ack.id for ack in acks}) == 4
    first, second = mesh.calls["EnqueueBatch"]
    assert len(second.items) == 2
    assert second.items[0].idempotency_key == first.items[0].idempotency_key
    assert second.items[1].idempotency_key != first.items[1].idempotency_key


async def test_a_batch_whose_answer_got_lost_makes_no_twins(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(UNAVAILABLE, after=True)]
    acks = await client.enqueue_many([NewJob("echo", n) for n in range(10)])
    assert set(mesh.records) == {ack.id for ack in acks}


async def test_without_keys_an_unknown_outcome_is_reported_not_repeated(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["item"] = [Fault(OutcomeUnknown("s1"), after=True), Fault(ShardUnavailable("s1"))]
    acks = await client.enqueue_many(
        [NewJob("echo", 1), NewJob("echo", 2)], make_keys=False, raise_errors=False
    )
    assert isinstance(acks[0].error, Unavailable)
    assert acks[1].ok
    assert len(mesh.records) == 2
