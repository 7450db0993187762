"""Jobs with idempotency keys that are alike travel in columns, and a repetition finds each."""

from __future__ import annotations

import asyncio

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2

from tests.integration.enqueue_desk import Desk, desk, rows  # noqa: F401


def item(data: bytes, key: str = "", **spec: object) -> pb.EnqueueItem:
    given = {"type": "echo", "input": payload_pb2.Payload(data=data), **spec}
    return pb.EnqueueItem(job=job_pb2.JobSpec(**given), idempotency_key=key)  # type: ignore[arg-type]


def keyed(count: int, **spec: object) -> list[pb.EnqueueItem]:
    return [item(b"%d" % n, f"k{n}", **spec) for n in range(count)]


async def stored(desk: Desk, items: list[pb.EnqueueItem]) -> list[pb.EnqueueResult]:
    return list((await desk.stub.EnqueueBatch(pb.EnqueueBatchRequest(items=items))).results)


async def test_a_batch_sent_twice_is_stored_once_each_job_with_its_own_input(desk):
    first, again = await stored(desk, keyed(50)), await stored(desk, keyed(50))
    assert [one.job_id for one in again] == [one.job_id for one in first]
    assert ({one.existing for one in first}, {one.existing for one in again}) == ({False}, {True})
    assert await rows(desk) == 50
    for at in (0, 17, 49):
        assert (await desk.get(first[at].job_id)).spec.input.data == b"%d" % at


async def test_what_is_known_is_told_of_that_job_and_hinders_no_other(desk):
    before = await stored(desk, keyed(3))
    items = [*keyed(6), item(b"3", "k3"), item(b"other", "k1")]
    results = await stored(desk, items)
    assert [one.existing for one in results] == [True] * 3 + [False] * 3 + [True, False]
    assert [one.job_id for one in results[:3]] == [one.job_id for one in before]
    assert results[6].job_id == results[3].job_id
    assert (results[7].job_id, results[7].error.reason) == ("", "IDEMPOTENCY_CONFLICT")
    assert await rows(desk) == 6


async def test_however_a_job_travels_its_content_is_known_again(desk):
    """In columns, beside others as a message, and by a call of its own."""
    (alone,) = await stored(desk, keyed(1))
    beside = await stored(desk, [*keyed(2), item(b"no key"), item(b"hm", "l", labels={"a": "b"})])
    columns = await stored(desk, keyed(3))
    calls = await asyncio.gather(*(desk.enqueue(b"%d" % n, f"k{n}") for n in range(3)))
    assert [beside[0].job_id, columns[0].job_id] == [alone.job_id] * 2
    assert [one.job.id for one in calls] == [one.job_id for one in columns]
    assert {one.existing for one in calls} == {True}
    assert await rows(desk) == 5


async def test_batches_and_calls_beside_each_other_make_one_job_of_a_key(desk):
    batches = asyncio.gather(*(stored(desk, keyed(20)) for _ in range(4)))
    calls = asyncio.gather(*(desk.enqueue(b"%d" % n, f"k{n}") for _ in range(3) for n in range(20)))
    told = await batches
    ids = {tuple(one.job_id for one in batch) for batch in told}
    assert len(ids) == 1
    assert [one.job.id for one in await calls] == [*ids.pop()] * 3
    assert await rows(desk) == 20
    made = [one for batch in told for one in batch if not one.existing]
    assert len(made) + sum(not one.existing for one in await calls) == 20
