"""WatchJobs by filter over real shards, with everything that may go wrong between them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest
from grpc.aio import EOF
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub

from services.enqueue.main import build
from services.mesh.errors import (
    InvalidField,
    NotImplementedYet,
    ResumeTokenExpired,
    ResumeTokenInvalid,
)
from services.mesh.testing.waiting import eventually
from tests.integration.enqueue_desk import desk  # noqa: F401 - the fixture
from tests.integration.orchestrator_rig import block, unblock
from tests.integration.parts import served


@pytest.fixture(autouse=True)
async def _patience():
    async with asyncio.timeout(50):
        yield


def watch(desk, token: str = "", **filter_) -> object:
    request = pb.WatchJobsRequest(filter=job_pb2.JobFilter(**filter_), resume_token=token)
    return desk.stub.WatchJobs(request)


async def begun(call) -> tuple[list[job_pb2.Job], str]:
    """The snapshot, and the token that ends it. A heartbeat that comes while a shard is slow has
    none: who went on with that would begin anew.
    """
    jobs = []
    while not (response := await call.read()).resume_token:
        if response.HasField("snapshot"):
            jobs.append(response.snapshot)
    assert response.WhichOneof("message") == "heartbeat"
    return jobs, response.resume_token


async def events(call, count: int) -> list[pb.WatchJobsResponse]:
    found = []
    while len(found) < count:
        response = await call.read()
        assert response is not EOF
        if response.HasField("event"):
            found.append(response)
    return found


def versions(responses) -> list[tuple[str, int]]:
    return [(r.event.job_id, r.event.version) for r in responses]


async def test_a_watch_is_what_lives_and_then_every_transition_of_what_matches(desk):
    old = (await desk.enqueue(labels={"team": "red"})).job
    done = (await desk.enqueue(labels={"team": "red"})).job
    await desk.enqueue(labels={"team": "blue"})
    await desk.stub.CancelJob(pb.CancelJobRequest(job_id=done.id))
    call = watch(desk, types=["echo"], labels={"team": "red"})
    snapshot, token = await begun(call)
    assert [job.id for job in snapshot] == [old.id]
    assert token
    new = (await desk.enqueue(labels={"team": "red"})).job
    await desk.enqueue(labels={"team": "blue"})
    await desk.stub.CancelJob(pb.CancelJobRequest(job_id=new.id))
    await desk.stub.CancelJob(pb.CancelJobRequest(job_id=old.id))
    got = versions(await events(call, 3))
    assert sorted(got) == sorted([(new.id, 1), (new.id, 2), (old.id, 2)])
    assert got.index((new.id, 1)) < got.index((new.id, 2))


async def test_states_select_the_transitions_into_them(desk):
    job = (await desk.enqueue()).job
    call = watch(desk, states=[job_pb2.JOB_STATE_SUCCEEDED])
    snapshot, _ = await begun(call)
    assert snapshot == []
    await desk.run(job)
    (only,) = await events(call, 1)
    assert (only.event.job_id, only.event.state) == (job.id, job_pb2.JOB_STATE_SUCCEEDED)


async def test_a_watch_resumes_after_each_token_on_another_replica(desk):
    call = watch(desk, types=["echo"])
    _, token = await begun(call)
    jobs = [(await desk.enqueue(key=f"k{n}")).job for n in range(12)]
    assert len({job.shard for job in jobs}) > 1
    for job in jobs:
        await desk.stub.CancelJob(pb.CancelJobRequest(job_id=job.id))
    responses = await events(call, 24)
    call.cancel()
    everything = sorted(versions(responses))
    assert len(set(everything)) == 24
    async with served("enqueue", desk.config, build) as (_, channel, _):
        desk.stub = EnqueueServiceStub(channel)
        tokens = [token, *(response.resume_token for response in responses)]
        for place in (0, 1, 7, 12, 23):
            other = watch(desk, tokens[place], types=["echo"])
            rest = versions(await events(other, 24 - place))
            assert sorted(versions(responses[:place]) + rest) == everything
            other.cancel()


async def test_a_transaction_held_open_with_a_low_number_is_not_skipped(desk, shard_dsns):
    """What began first and commits last is neither lost nor overtaken by a token."""
    job = (await desk.enqueue()).job
    dsn = shard_dsns[int(job.shard[1:])]
    call = watch(desk, types=["echo"])
    await begun(call)
    with psycopg.connect(dsn) as late:
        late.execute("SELECT pg_current_xact_id()")
        await desk.stub.CancelJob(pb.CancelJobRequest(job_id=job.id))
        reading = asyncio.ensure_future(events(call, 2))
        done, _ = await asyncio.wait({reading}, timeout=0.5)
        assert not done
        late.execute(
            "WITH e AS (INSERT INTO event_rows (job_id, time, version, state, reason)"
            " VALUES (%(id)s, now(), 3, 6, 10))"
            " INSERT INTO commits (size, job_ids, versions)"
            " VALUES (1, ARRAY[%(id)s::uuid], ARRAY[3])",
            {"id": job.id},
        )
        late.commit()
    first, second = await reading
    # The late one has the lower number, so it comes first: the order is the shard's.
    assert {first.event.version, second.event.version} == {2, 3}
    resumed = watch(desk, first.resume_token, types=["echo"])
    assert versions(await events(resumed, 1)) == versions([second])


async def test_a_shard_that_is_away_lags_and_its_events_follow(desk, shard_dsns):
    jobs = [(await desk.enqueue(key=f"k{n}")).job for n in range(12)]
    victim = next(job for job in jobs if job.shard == "s0")
    other = next(job for job in jobs if job.shard != "s0")
    call = watch(desk, types=["echo"])
    await begun(call)
    store = desk.mesh.stores["s0"]
    block(shard_dsns[0])
    try:
        await desk.stub.CancelJob(pb.CancelJobRequest(job_id=other.id))
        assert versions(await events(call, 1)) == [(other.id, 2)]
        while True:
            beat = await call.read()
            if list(beat.heartbeat.lagging_shards) == ["s0"]:
                break
        assert beat.resume_token
    finally:
        unblock(shard_dsns[0])
    await eventually(lambda: _cancels(desk, store, victim.id))
    assert versions(await events(call, 1)) == [(victim.id, 2)]


async def _cancels(desk, store, job_id: str) -> bool:
    try:
        await desk.stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
    except Exception:
        return False
    return True


async def test_a_token_older_than_what_is_kept_has_expired(desk):
    call = watch(desk, types=["echo"])
    _, token = await begun(call)
    for number in range(6):
        job = (await desk.enqueue(key=f"k{number}")).job
        await desk.stub.CancelJob(pb.CancelJobRequest(job_id=job.id))
    for store in desk.mesh.stores.values():
        await store.purge_order(timedelta(0))
    with pytest.raises(ResumeTokenExpired):
        await watch(desk, token, types=["echo"]).read()


async def test_garbage_is_refused_and_what_is_not_filled_says_so(desk):
    call = watch(desk, types=["echo"])
    _, token = await begun(call)
    for given, filter_ in [("garbage", {}), (token, {"types": ["other"]}), (token, {})]:
        with pytest.raises(ResumeTokenInvalid):
            await watch(desk, given, **filter_).read()
    for field in ({"schedule": "s"}, {"create_time_from": {"seconds": 1}}):
        with pytest.raises(NotImplementedYet):
            await watch(desk, **field).read()
    with pytest.raises(InvalidField):
        await watch(desk, types=["Not A Type"]).read()


async def test_a_drain_ends_with_a_token_and_ok(desk):
    call = watch(desk, types=["echo"])
    await begun(call)
    desk.process.drain.set()
    last = await call.read()
    assert last.WhichOneof("message") == "drain"
    assert last.resume_token
    assert await call.read() is EOF


async def test_many_transitions_come_in_few_messages_to_who_asks_for_that(desk):
    filter_ = job_pb2.JobFilter(types=["echo"])
    call = desk.stub.WatchJobs(pb.WatchJobsRequest(filter=filter_, batches=True))
    await begun(call)
    item = pb.EnqueueItem(job=job_pb2.JobSpec(type="echo"))
    await desk.stub.EnqueueBatch(pb.EnqueueBatchRequest(items=[item] * 400))
    counts = []
    while sum(counts) < 400:
        counts.append(len((await call.read()).batch.events))
    assert len(counts) <= 8
