"""One shard's order of events, read page by page through the Orchestrator."""

from __future__ import annotations

import psycopg
import pytest
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField, ShardNotFound
from services.mesh.testing.waiting import eventually
from tests.integration.orchestrator_rig import new_job


async def page(stand, shard: str, after=None, **given) -> pb.ListShardEventsResponse:
    return await stand.stub.ListShardEvents(
        pb.ListShardEventsRequest(shard=shard, after=after, **given)
    )


async def test_a_reader_begins_at_the_end_and_then_sees_what_is_new(stand):
    (old,) = await stand.put(new_job(key="k1"))
    shard = old.job.shard
    begin = await page(stand, shard)
    assert (len(begin.events), begin.more, begin.truncated) == (0, False, False)
    await stand.store_of(old.job).claim("echo", "w-1", 10)
    news = await page(stand, shard, begin.next)
    assert [(e.event.job_id, e.event.version) for e in news.events] == [(old.job.id, 2)]
    assert (news.next.xid, news.next.number) >= (begin.next.xid, begin.next.number)
    assert not (await page(stand, shard, news.next)).events


async def test_pages_select_by_tenant_and_type(stand):
    begins = {name: (await page(stand, name)).next for name in stand.stores}
    results = await stand.put(new_job("echo"), new_job("other"))
    shard = results[0].job.shard
    for given, expected in [
        ({}, ["echo", "other"]),
        ({"types": ["other"]}, ["other"]),
        ({"namespaces": ["nobody"]}, []),
        ({"namespaces": ["default"], "types": ["echo", "x"]}, ["echo"]),
    ]:
        found = await page(stand, shard, begins[shard], **given)
        assert [e.event.type for e in found.events] == expected


async def test_a_transaction_that_is_still_open_is_not_passed(stand, shard_dsns):
    """The order of transactions is that of their beginning: later ones wait for an open one."""
    shard, dsn = "s0", shard_dsns[0]
    begin = (await page(stand, shard)).next
    with psycopg.connect(dsn) as late:
        late.execute("SELECT pg_current_xact_id()")
        job = await _stored_on(stand, shard)
        during = await page(stand, shard, begin)
        assert not during.events
        assert during.next.xid < during.next_xid
        late.commit()
    await eventually(lambda: _has(stand, shard, during.next, job.id))


async def test_a_shard_nobody_knows_and_bad_positions_are_refused(stand):
    with pytest.raises(ShardNotFound):
        await page(stand, "nowhere")
    with pytest.raises(InvalidField):
        await page(stand, "s0", pb.EventPosition(xid=-1))


async def _has(stand, shard, after, job_id) -> bool:
    """Soon, not at once: the shard's own housekeeping has transactions too."""
    return [e.event.job_id for e in (await page(stand, shard, after)).events] == [job_id]


async def _stored_on(stand, shard: str):
    for number in range(1000):
        (result,) = await stand.put(new_job(key=f"key-{number}"))
        if result.job.shard == shard:
            return result.job
    raise AssertionError("no key led to the shard")
