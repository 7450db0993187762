"""Jobs of one call that wait for each other: named by number, by id, and never by a wrong one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jobmesh import After, AsyncClient, NewJob
from jobmesh.errors import CallError, InputError

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh


def chain(length: int) -> Iterator[NewJob]:
    last = NewJob("echo", 0)
    yield last
    for n in range(1, length):
        last = NewJob("echo", n, after=last)
        yield last


def parents_of(mesh: MemoryMesh, job_id: str) -> list[str]:
    return [one.job_id for one in mesh.records[job_id].job.spec.dependencies]


async def test_a_diamond_is_one_message(client: AsyncClient, mesh: MemoryMesh) -> None:
    top = NewJob("echo", "top")
    sides = [NewJob("echo", side, after=top) for side in "lr"]
    end = NewJob("echo", "end", after=[sides[0], After(sides[1], "run"), "an-id"])
    ids = [ack.id for ack in await client.enqueue_many([top, *sides, end])]
    assert [parents_of(mesh, one) for one in ids[1:3]] == [[ids[0]], [ids[0]]]
    assert parents_of(mesh, ids[3]) == ["an-id", ids[1], ids[2]]
    assert [p.on_failure for p in mesh.records[ids[3]].job.spec.dependencies] == [1, 1, 2]
    assert len(mesh.calls["EnqueueBatch"]) == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_a_chain_of_any_length_goes_in_messages_of_fifty(
    client: AsyncClient, mesh: MemoryMesh, streams: bool
) -> None:
    mesh.streams = streams
    ids = [ack.id for ack in await client.enqueue_many(chain(220))]
    assert [parents_of(mesh, one) for one in ids[1:]] == [[one] for one in ids[:-1]]
    calls = mesh.calls["EnqueueBatch"] + mesh.calls["EnqueueStream"]
    assert [len(call.items) for call in calls] == [50] * 4 + [20]


async def test_what_waits_for_a_refused_job_is_not_sent_and_says_why(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    bad = NewJob("nobody", 1)
    unreadable = NewJob("echo", object())
    jobs = [bad, NewJob("echo", 2, after=bad), unreadable, NewJob("echo", 3, after=unreadable)]
    acks = await client.enqueue_many(jobs, raise_errors=False)
    assert [ack.ok for ack in acks] == [False] * 4
    reasons = [ack.error.reason for ack in acks if isinstance(ack.error, CallError)]
    assert reasons == ["UNKNOWN_TYPE", "PARENT_NOT_STORED", "PARENT_NOT_STORED"]
    assert "not stored" in str(acks[3].error)
    assert not mesh.records


async def test_a_job_that_does_not_come_before_is_no_parent(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    later = NewJob("echo", 2)
    acks = await client.enqueue_many([NewJob("echo", 1, after=later), later], raise_errors=False)
    assert isinstance(acks[0].error, InputError)
    assert acks[1].ok
    with pytest.raises(ValueError, match="enqueue_many"):
        await client.enqueue("echo", 1, after=later)


@pytest.mark.parametrize("error", [OutcomeUnknown("s0"), ShardUnavailable("s0")])
@pytest.mark.parametrize("after", [False, True])
async def test_a_parent_that_goes_again_takes_its_children_along(
    client: AsyncClient, mesh: MemoryMesh, error: Exception, after: bool
) -> None:
    if after and isinstance(error, ShardUnavailable):
        return  # that one says for certain that nothing was stored
    mesh.faults["item"] = [Fault(error, after=after)]  # type: ignore[arg-type]
    ids = [ack.id for ack in await client.enqueue_many(chain(3))]
    assert [parents_of(mesh, one) for one in ids] == [[], [ids[0]], [ids[1]]]
    assert len(mesh.records) == 3
    assert len(mesh.calls["EnqueueBatch"]) == 2


async def test_a_child_that_goes_again_names_its_parent_by_id(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["item"] = [Fault(None), Fault(ShardUnavailable("s0"))]  # type: ignore[arg-type]
    ids = [ack.id for ack in await client.enqueue_many(chain(2))]
    assert parents_of(mesh, ids[1]) == [ids[0]]
    again = mesh.calls["EnqueueBatch"][1].items
    assert [item.job.dependencies[0].job_id for item in again] == [ids[0]]


async def test_a_parent_that_cannot_go_again_leaves_its_children_unsent(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["item"] = [Fault(OutcomeUnknown("s0"))]
    parent = NewJob("echo", 1)
    jobs = [parent, NewJob("echo", 2, after=parent, idempotency_key="k")]
    acks = await client.enqueue_many(jobs, raise_errors=False, make_keys=False)
    assert [ack.ok for ack in acks] == [False, False]
    assert not mesh.records


async def test_a_job_of_another_call_is_no_parent(client: AsyncClient) -> None:
    first = NewJob("echo", 1)
    (ack,) = await client.enqueue_many([first])
    acks = await client.enqueue_many([NewJob("echo", 2, after=first)], raise_errors=False)
    assert "in this call" in str(acks[0].error)
    assert (await client.enqueue_many([NewJob("echo", 2, after=ack)]))[0].ok
    assert NewJob("echo", 1) == first
