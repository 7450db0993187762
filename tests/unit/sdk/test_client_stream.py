"""Many jobs over EnqueueStream: in order, again where that is safe, and by batches without it."""

from __future__ import annotations

import grpc
import pytest
from jobmesh import AsyncClient, NewJob
from jobmesh.errors import Unavailable

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh


@pytest.fixture(autouse=True)
def _streams(mesh: MemoryMesh) -> None:
    mesh.streams = True


def inputs(mesh: MemoryMesh, acks) -> list[bytes]:
    return [mesh.records[ack.id].job.spec.input.data for ack in acks]


def numbers(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


async def test_many_jobs_go_over_a_stream_after_the_first_batches(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    acks = await client.enqueue_many((NewJob("echo", n) for n in range(5500)), namespace="n1")
    assert inputs(mesh, acks) == numbers(5500)
    assert len(mesh.calls["EnqueueBatch"]) == 2
    assert [len(call.items) for call in mesh.calls["EnqueueStream"]] == [1000, 1000, 1000, 500]
    assert [call.namespace for call in mesh.calls["EnqueueStream"]] == ["n1", "", "", ""]


async def test_few_jobs_need_no_stream(client: AsyncClient, mesh: MemoryMesh) -> None:
    await client.enqueue_many(NewJob("echo", n) for n in range(1500))
    assert not mesh.calls["EnqueueStream"]


async def test_an_older_server_gets_batches(client: AsyncClient, mesh: MemoryMesh) -> None:
    mesh.streams = False
    acks = await client.enqueue_many(NewJob("echo", n) for n in range(5500))
    assert inputs(mesh, acks) == numbers(5500)
    assert len(mesh.calls["EnqueueBatch"]) == 6


@pytest.mark.parametrize("after", [False, True])
async def test_a_stream_that_breaks_makes_no_twins(
    client: AsyncClient, mesh: MemoryMesh, after: bool
) -> None:
    mesh.faults["EnqueueStream"] = [Fault(grpc.StatusCode.UNAVAILABLE, after=after)]
    acks = await client.enqueue_many(NewJob("echo", n) for n in range(6000))
    assert inputs(mesh, acks) == numbers(6000)
    assert len(mesh.records) == 6000


async def test_a_server_that_drains_is_followed_by_another_stream(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.drains = 2
    jobs = (NewJob("echo", n) for n in range(8000))
    acks = [ack async for ack in client.enqueue_stream(jobs)]
    assert inputs(mesh, acks) == numbers(8000)
    assert len(mesh.records) == 8000


async def test_items_of_a_stream_that_failed_in_passing_are_sent_again(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    def jobs():
        for n in range(4000):
            if n == 3000:
                unknown, away = OutcomeUnknown("s1"), ShardUnavailable("s2")
                mesh.faults["item"] = [Fault(unknown, after=True), Fault(away)]
            yield NewJob("echo", n)

    acks = await client.enqueue_many(jobs())
    assert len(mesh.records) == 4000
    assert inputs(mesh, acks) == numbers(4000)


async def test_acks_come_while_jobs_are_still_being_made(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    made = 0

    def jobs():
        nonlocal made
        for made in range(1, 20_001):
            yield NewJob("echo", made)

    acked = 0
    async for ack in client.enqueue_stream(jobs()):
        acked += ack.ok
        assert made - acked <= 7000, "no more is taken than a few batches hold"
    assert acked == 20_000


async def test_what_the_jobs_raise_comes_out_as_it_is(client: AsyncClient) -> None:
    def jobs():
        for n in range(5000):
            yield NewJob("echo", n)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.enqueue_many(jobs())


async def test_a_mesh_that_does_not_answer_ends_a_stream_in_time(
    address: str, mesh: MemoryMesh
) -> None:
    mesh.hanging.add("EnqueueStream")
    async with AsyncClient(address, timeout=4.0, attempts=1) as client:
        acks = await client.enqueue_many(
            (NewJob("echo", n) for n in range(3000)), raise_errors=False
        )
    assert [ack.ok for ack in acks] == [True] * 2000 + [False] * 1000
    assert not isinstance(acks[-1].error, Unavailable)
