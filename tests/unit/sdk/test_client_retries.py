"""What a client sends again, under which key, and when it gives up."""

from __future__ import annotations

import grpc
import pytest
from jobmesh import (
    AsyncClient,
    JobState,
    NewJob,
)
from jobmesh.errors import (
    AlreadyExists,
    CallError,
    Unavailable,
)

from services.mesh.errors import (
    DependencyUnavailable,
    Draining,
    MeshError,
    NoHealthyShard,
    OutcomeUnknown,
    Overloaded,
    ShardUnavailable,
)
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
#: What gRPC says of calls that a server which drains has not begun.
CANCELLED = grpc.StatusCode.CANCELLED


async def test_a_lost_answer_makes_no_second_job(client: AsyncClient, mesh: MemoryMesh) -> None:
    mesh.faults["Enqueue"] = [Fault(UNAVAILABLE, after=True)]
    handle = await client.enqueue("echo", 1)
    assert list(mesh.records) == [handle.id]
    first, second = mesh.calls["Enqueue"]
    assert first.idempotency_key == second.idempotency_key != ""


async def test_each_submission_gets_a_key_of_its_own(client: AsyncClient, mesh: MemoryMesh) -> None:
    await client.enqueue("echo", 1)
    await client.enqueue("echo", 1)
    assert len(mesh.records) == 2


async def test_a_known_key_returns_the_first_job_and_says_so(client: AsyncClient) -> None:
    first = await client.enqueue("echo", 1, idempotency_key="k")
    again = await client.enqueue("echo", 1, idempotency_key="k")
    assert (first.id, first.existing, again.existing) == (again.id, False, True)
    with pytest.raises(AlreadyExists, match="IDEMPOTENCY_CONFLICT"):
        await client.enqueue("echo", 2, idempotency_key="k")


async def test_a_shard_that_is_away_is_left_with_another_key(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["Enqueue"] = [Fault(ShardUnavailable("s1", retry_after=60))]
    await client.enqueue("echo")
    first, second = mesh.calls["Enqueue"]
    assert first.idempotency_key != second.idempotency_key


@pytest.mark.parametrize(
    "unknown", [OutcomeUnknown("s1"), DependencyUnavailable("orchestrator"), UNAVAILABLE, CANCELLED]
)
async def test_a_key_that_may_be_taken_is_never_changed(
    client: AsyncClient, mesh: MemoryMesh, unknown: MeshError | grpc.StatusCode
) -> None:
    mesh.faults["Enqueue"] = [
        Fault(unknown, after=True),
        Fault(ShardUnavailable("s1", retry_after=0.01)),
    ]
    handle = await client.enqueue("echo")
    assert len({call.idempotency_key for call in mesh.calls["Enqueue"]}) == 1
    assert list(mesh.records) == [handle.id]


async def test_what_an_earlier_try_may_have_stored_is_not_told_as_not_stored(
    address: str, mesh: MemoryMesh
) -> None:
    mesh.faults["Enqueue"] = [Fault(UNAVAILABLE, after=True), Fault(NoHealthyShard())]
    async with AsyncClient(address, attempts=2) as client:
        with pytest.raises(Unavailable, match="an earlier try may have stored it") as caught:
            await client.enqueue("echo")
    assert caught.value.reason == "OUTCOME_UNKNOWN"
    assert len(mesh.records) == 1


async def test_a_callers_own_key_is_never_changed(client: AsyncClient, mesh: MemoryMesh) -> None:
    mesh.faults["Enqueue"] = [Fault(ShardUnavailable("s1", retry_after=0.01))]
    await client.enqueue("echo", idempotency_key="mine")
    assert [call.idempotency_key for call in mesh.calls["Enqueue"]] == ["mine", "mine"]


async def test_an_empty_key_of_the_caller_means_no_retry(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["Enqueue"] = [Fault(UNAVAILABLE, after=True)]
    with pytest.raises(Unavailable):
        await client.enqueue("echo", idempotency_key="")
    assert len(mesh.calls["Enqueue"]) == 1


async def test_what_only_passes_by_is_retried_and_what_stays_is_not(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.faults["GetJob"] = [Fault(Draining()), Fault(Overloaded(retry_after=0.01))]
    handle = await client.enqueue("echo")
    assert (await handle.get()).state is JobState.SCHEDULED
    assert len(mesh.calls["GetJob"]) == 3
    mesh.faults["GetJob"] = [Fault(grpc.StatusCode.INTERNAL)]
    with pytest.raises(CallError, match="INTERNAL"):
        await handle.get()
    assert len(mesh.calls["GetJob"]) == 4


async def test_a_call_that_a_draining_server_did_not_begin_is_sent_again(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    handle = await client.enqueue("echo")
    mesh.faults["GetJob"] = [Fault(CANCELLED)]
    assert (await handle.get()).state is JobState.SCHEDULED
    mesh.faults["EnqueueBatch"] = [Fault(CANCELLED)]
    (ack,) = await client.enqueue_many([NewJob("echo")])
    assert ack.ok


async def test_tries_are_bounded(address: str, mesh: MemoryMesh) -> None:
    mesh.faults["ListTypes"] = [Fault(UNAVAILABLE) for _ in range(9)]
    async with AsyncClient(address, attempts=3) as client:
        with pytest.raises(Unavailable):
            await client.types()
    assert len(mesh.calls["ListTypes"]) == 3


async def test_the_servers_pace_counts_against_the_deadline(address: str, mesh: MemoryMesh) -> None:
    mesh.faults["ListTypes"] = [Fault(Overloaded(retry_after=60))]
    async with AsyncClient(address) as client:
        with pytest.raises(CallError) as caught:
            await client.types()
    assert (caught.value.reason, caught.value.retry_after) == ("OVERLOADED", 60)
