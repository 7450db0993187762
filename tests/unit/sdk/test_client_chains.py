"""Jobs of one call that wait for each other: named by number, by id, and never by a wrong one."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from jobmesh import After, AsyncClient, NewJob
from jobmesh.errors import CallError, InputError

from services.mesh.errors import MeshError, OutcomeUnknown, QuotaExceeded, ShardUnavailable
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def nothing(times: int) -> list[Fault]:
    """So many items go well."""
    return [Fault(None)] * times  # type: ignore[arg-type]


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
    assert isinstance(acks[1].error, CallError)
    assert acks[1].error.metadata["parent_reason"] == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (OutcomeUnknown("s0"), "OUTCOME_UNKNOWN"),
        (UNAVAILABLE, "OUTCOME_UNKNOWN"),
        (QuotaExceeded("default", "jobs"), "QUOTA_EXCEEDED"),
    ],
)
async def test_what_is_not_sent_says_whether_its_parent_may_be_stored(
    client: AsyncClient, mesh: MemoryMesh, error: MeshError | grpc.StatusCode, fate: str
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(error)]
    # The last one would go in a message of its own.
    acks = await client.enqueue_many(chain(51), raise_errors=False, make_keys=False)
    last = acks[50].error
    assert isinstance(last, CallError)
    assert (last.reason, last.metadata) == ("PARENT_NOT_STORED", {"parent_reason": fate})
    assert ("may or may not" in str(last)) == (fate == "OUTCOME_UNKNOWN")


async def test_a_message_whose_answer_got_lost_makes_no_twins_of_children(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(UNAVAILABLE, after=True)]
    # When it is sent again: the parent is there, and the child's shard is away.
    mesh.faults["item"] = [*nothing(3), Fault(ShardUnavailable("s1"))]
    ids = [ack.id for ack in await client.enqueue_many(chain(2))]
    assert set(mesh.records) == set(ids)


async def test_a_child_without_a_key_does_not_go_again_with_its_parent(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(UNAVAILABLE, after=True)]
    parent = NewJob("echo", 1, idempotency_key="k")
    jobs = [parent, NewJob("echo", 2, after=parent)]
    acks = await client.enqueue_many(jobs, raise_errors=False, make_keys=False)
    assert [ack.ok for ack in acks] == [True, False]
    assert len(mesh.records) == 2


async def test_a_child_that_an_earlier_try_may_have_stored_is_not_told_as_not_stored(
    address: str, mesh: MemoryMesh
) -> None:
    mesh.faults["EnqueueBatch"] = [Fault(UNAVAILABLE, after=True)]
    mesh.faults["item"] = [*nothing(2), Fault(OutcomeUnknown("s0"))]
    async with AsyncClient(address, attempts=2) as client:
        acks = await client.enqueue_many(chain(2), raise_errors=False)
    assert len(mesh.records) == 2
    reasons = [ack.error.reason for ack in acks if isinstance(ack.error, CallError)]
    assert reasons == ["OUTCOME_UNKNOWN"] * 2


async def test_a_job_of_another_call_is_no_parent(client: AsyncClient) -> None:
    first = NewJob("echo", 1)
    (ack,) = await client.enqueue_many([first])
    acks = await client.enqueue_many([NewJob("echo", 2, after=first)], raise_errors=False)
    assert "in this call" in str(acks[0].error)
    assert (await client.enqueue_many([NewJob("echo", 2, after=ack)]))[0].ok
    assert NewJob("echo", 1) == first
