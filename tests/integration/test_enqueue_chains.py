"""Chains, fan-out and fan-in in one call, over real shards."""

from __future__ import annotations

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2

from tests.integration.enqueue_desk import Desk, desk, rows  # noqa: F401
from tests.integration.test_enqueue_stream import read

BLOCKED, SCHEDULED = job_pb2.JOB_STATE_BLOCKED, job_pb2.JOB_STATE_SCHEDULED
HOUR = {"seconds": 3600}


def item(*parents: int, key: str = "", policy: int = 0, **spec) -> pb.EnqueueItem:
    job = job_pb2.JobSpec(**{"type": "echo", "delay": HOUR, **spec})
    named = [{"item": parent, "on_failure": policy} for parent in parents]
    return pb.EnqueueItem(job=job, idempotency_key=key, item_dependencies=named)


async def stored(desk: Desk, *items: pb.EnqueueItem) -> list[pb.EnqueueResult]:
    # Of fifty rounds each is quick; on a crowded machine all of them take a while.
    request = pb.EnqueueBatchRequest(items=items)
    return list((await desk.stub.EnqueueBatch(request, timeout=50)).results)


async def parents_of(desk: Desk, job_id: str) -> list[str]:
    return [one.job_id for one in (await desk.get(job_id)).spec.dependencies]


async def test_a_diamond_is_one_call(desk: Desk) -> None:
    results = await stored(desk, item(), item(0), item(0), item(1, 2, policy=2))
    ids = [result.job_id for result in results]
    assert all(ids)
    jobs = [await desk.get(job_id) for job_id in ids]
    assert [job.state for job in jobs] == [SCHEDULED, BLOCKED, BLOCKED, BLOCKED]
    assert [await parents_of(desk, job_id) for job_id in ids] == [[], [ids[0]], [ids[0]], ids[1:3]]
    policies = [one.on_failure for one in jobs[3].spec.dependencies]
    assert policies == [job_pb2.PARENT_FAILURE_POLICY_RUN] * 2


async def test_items_of_the_batch_and_stored_jobs_are_waited_for_together(desk: Desk) -> None:
    before = (await desk.enqueue(delay=HOUR)).job.id
    both = item(0, dependencies=[{"job_id": before}])
    first, second = await stored(desk, item(), both)
    assert set(await parents_of(desk, second.job_id)) == {before, first.job_id}


async def test_what_waits_for_an_item_that_was_not_stored_is_not_stored(desk: Desk) -> None:
    bad = item(type="nobody")
    results = await stored(desk, item(), bad, item(1), item(2), item(0))
    reasons = [result.error.reason for result in results]
    lost = "PARENT_NOT_STORED"
    assert reasons == ["", "UNKNOWN_TYPE", lost, lost, ""]
    assert [results[n].error.metadata["item"] for n in (2, 3)] == ["1", "2"]
    assert await rows(desk) == 2


async def test_cycles_and_doubles_are_refused_by_field_and_hinder_nobody(desk: Desk) -> None:
    results = await stored(desk, item(0), item(2), item(3), item(2), item(), item(4, 4))
    fields = [",".join(one.field for one in r.error.field_violations) for r in results]
    first = [f"items[{n}].item_dependencies[0].item" for n in range(3)]
    assert fields[:3] == first
    assert results[3].error.reason == "PARENT_NOT_STORED"
    assert fields[5] == "items[5].item_dependencies[1].item"
    assert [bool(result.job_id) for result in results] == [False] * 4 + [True, False]
    assert await rows(desk) == 1


async def test_more_parents_than_a_job_may_have_are_refused(desk: Desk) -> None:
    *_, last = await stored(desk, *(item() for _ in range(101)), item(*range(101)))
    assert last.error.field_violations[0].field == "items[101].job.dependencies"


async def test_a_repeated_call_is_the_same_graph(desk: Desk) -> None:
    batch = [item(key="a"), item(0, key="b"), item(0, 1, key="c")]
    first = await stored(desk, *batch)
    again = await stored(desk, *batch)
    assert [result.job_id for result in again] == [result.job_id for result in first]
    assert [result.existing for result in again] == [True] * 3
    assert await rows(desk) == 3


async def test_a_long_chain_is_one_call_and_a_longer_one_is_cut(desk: Desk) -> None:
    results = await stored(desk, item(), *(item(n) for n in range(51)))
    assert [bool(result.job_id) for result in results] == [True] * 50 + [False] * 2
    assert "chain" in results[50].error.field_violations[0].description
    assert await parents_of(desk, results[49].job_id) == [results[48].job_id]


async def test_messages_of_a_stream_have_their_own_numbers(desk: Desk) -> None:
    call = desk.stub.EnqueueStream()
    plain = pb.EnqueueStreamRequest(items=[item(), item()])
    chain = pb.EnqueueStreamRequest(items=[item(), item(0), item(5)])
    for request in (plain, chain, plain, chain):
        await call.write(request)
    await call.done_writing()
    results = await read(call, 10)
    for first in (2, 7):
        assert await parents_of(desk, results[first + 1].job_id) == [results[first].job_id]
        field = results[first + 2].error.field_violations[0].field
        assert field == f"items[{first + 2}].item_dependencies[0].item"
    assert await rows(desk) == 8
