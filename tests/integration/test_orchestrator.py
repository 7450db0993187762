"""The Orchestrator over real shards, NATS and etcd, called as the other services call it."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import psycopg
import pytest
from jobmesh.v1 import bus_pb2, job_pb2, payload_pb2, topology_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField, ScheduleExists, ScheduleNotFound
from services.mesh.jobs import ids
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Parent
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.testing.waiting import eventually
from tests.integration.parts import Stand, orchestrator


def new_job(type_: str = "echo", data: bytes = b"hi", key: str = "", **spec) -> pb.NewJob:
    return pb.NewJob(
        namespace="default",
        spec=job_pb2.JobSpec(type=type_, input=payload_pb2.Payload(data=data), **spec),
        idempotency_key=key,
        request_hash=uuid.uuid5(uuid.NAMESPACE_OID, f"{type_} {data!r}").bytes * 2 if key else b"",
    )


@pytest.fixture
async def stand(shard_dsns, nats_url, etcd_endpoint, unique_prefix):
    async with orchestrator(shard_dsns, nats_url, etcd_endpoint, unique_prefix) as running:
        yield running


async def claim(stand: Stand, job: job_pb2.Job, worker: str = "w-1"):
    answer = await stand.store_of(job).claim(job.spec.type or "echo", worker, 100)
    return next(claimed for claimed in answer.jobs if str(claimed.id) == job.id)


def report(job_id: uuid.UUID, fence: int, **kind) -> pb.AttemptReport:
    return pb.AttemptReport(job_id=job_id.bytes, dispatch_no=fence, **kind)


async def reported(stand: Stand, *reports: pb.AttemptReport, worker: str = "w-1"):
    """Open a report stream, send, and collect one verdict per report."""
    call = stand.stub.ReportAttempts()
    await call.write(pb.ReportAttemptsRequest(hello=pb.ReportHello(worker_id=worker)))
    await call.write(pb.ReportAttemptsRequest(reports=reports))
    verdicts = {}
    async with asyncio.timeout(10):
        while len(verdicts) < len(reports):
            response = await call.read()
            for verdict in response.verdicts:
                verdicts[verdict.job_id, verdict.dispatch_no] = verdict.verdict
    await call.done_writing()
    return [verdicts[r.job_id, r.dispatch_no] for r in reports]


async def reported_in_columns(stand: Stand, columns: pb.SucceededAttempts, *more):
    """As `reported`, by a worker that knows columns; every verdict by job and fence."""
    call = stand.stub.ReportAttempts()
    hello = pb.ReportHello(worker_id="w-1", columns=True)
    await call.write(pb.ReportAttemptsRequest(hello=hello))
    verdicts = {}
    async with asyncio.timeout(10):
        assert (await call.read()).columns
        await call.write(pb.ReportAttemptsRequest(succeeded=[columns], reports=more))
        while len(verdicts) < len(columns.dispatch_nos) + len(more):
            response = await call.read()
            assert not response.verdicts
            for run in response.judged:
                for at, fence in enumerate(run.dispatch_nos):
                    key = run.job_ids[16 * at : 16 * at + 16]
                    verdicts[uuid.UUID(bytes=key), fence] = run.verdict
    await call.done_writing()
    return verdicts


async def test_an_unkeyed_batch_goes_to_one_shard_as_a_whole(stand):
    results = await stand.put(*(new_job() for _ in range(300)))
    assert len({result.job.shard for result in results}) == 1
    assert len({result.job.id for result in results}) == 300
    again = await stand.put(*(new_job() for _ in range(3)))
    assert again[0].job.shard != results[0].job.shard


async def test_the_id_says_where_the_job_is(stand):
    (result,) = await stand.put(new_job())
    topology = (await stand.stub.ListShards(pb.ListShardsRequest())).topology
    bucket = ids.bucket_of(uuid.UUID(result.job.id))
    (home,) = [
        shard.name
        for shard in topology.shards
        for part in shard.buckets
        if getattr(part, "from") <= bucket < part.until
    ]
    assert home == result.job.shard
    assert sum(shard.bucket_count for shard in topology.shards) == 4096
    assert topology.epoch == 1


async def test_a_stored_job_rings_the_bell_and_its_type_is_nudged_after_the_commit(stand):
    (result,) = await stand.put(new_job("render"))
    await eventually(lambda: stand.bells and stand.nudges)
    assert stand.bells == [(result.job.shard, {"", "default", "render"})]
    assert stand.hints == []
    assert stand.nudges == [("render", result.job.shard)]


async def test_a_job_for_next_week_is_not_nudged(stand):
    await stand.put(new_job(delay={"seconds": 7 * 86400}))
    await eventually(lambda: stand.bells)
    assert stand.nudges == []


async def test_the_same_key_and_content_are_the_same_job(stand):
    (first,) = await stand.put(new_job(key="k"))
    (second,) = await stand.put(new_job(key="k"))
    assert (first.existing, second.existing) == (False, True)
    assert first.job.id == second.job.id


async def test_the_same_key_with_other_content_is_a_conflict_of_that_item_only(stand):
    (first,) = await stand.put(new_job(key="k"))
    conflict, fine = await stand.put(new_job(data=b"other", key="k"), new_job())
    assert conflict.error.reason == "IDEMPOTENCY_CONFLICT"
    assert conflict.error.metadata["job_id"] == first.job.id
    assert fine.job.id


async def test_a_job_reads_back_as_it_was_submitted(stand):
    (result,) = await stand.put(
        new_job(
            priority=3,
            labels={"team": "a"},
            retry_policy={"max_attempts": 4, "initial_delay": {"seconds": 2}},
            timeouts={"run": {"seconds": 9}},
        )
    )
    job = (await stand.get(result.job.id, view=job_pb2.JOB_VIEW_FULL)).job
    assert (job.spec.type, job.spec.priority, dict(job.spec.labels)) == ("echo", 3, {"team": "a"})
    assert job.spec.input.data == b"hi"
    assert job.spec.retry_policy.max_attempts == 4
    assert job.spec.timeouts.run.seconds == 9
    assert job.state == job_pb2.JOB_STATE_SCHEDULED
    basic = (await stand.get(result.job.id)).job
    assert basic.spec.input.data == b""


async def test_a_job_of_another_namespace_is_not_found(stand):
    (result,) = await stand.put(new_job())
    missing = await stand.get(result.job.id, namespace="other")
    assert missing.error.reason == "JOB_NOT_FOUND"


async def test_an_id_nobody_made_is_refused_by_field(stand):
    with pytest.raises(InvalidField, match=r"job_ids\[0\]"):
        await stand.get(str(uuid.uuid4()))


async def test_lists_page_through_all_shards_newest_first(stand):
    made = [r.job.id for _ in range(6) for r in await stand.put(*(new_job() for _ in range(5)))]
    seen: list[str] = []
    before = ""
    while True:
        page = await stand.stub.ListJobs(
            pb.OrchestratorServiceListJobsRequest(
                namespace="default", page_size=7, before_job_id=before
            )
        )
        seen += [job.id for job in page.jobs]
        if not page.more:
            break
        before = page.jobs[-1].id
    assert seen == sorted(made, reverse=True)


async def test_a_report_commits_and_its_replay_is_committed_too(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded(output={"data": b"out"}))
    assert await reported(stand, done) == [pb.VERDICT_COMMITTED]
    assert await reported(stand, done) == [pb.VERDICT_COMMITTED]
    job = (await stand.get(result.job.id, view=job_pb2.JOB_VIEW_FULL)).job
    assert (job.state, job.output.data) == (job_pb2.JOB_STATE_SUCCEEDED, b"out")
    assert [a.outcome for a in job.attempts] == [job_pb2.ATTEMPT_OUTCOME_SUCCEEDED]


async def test_a_stale_fence_is_refused(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    stale = report(claimed.id, claimed.fence - 1, succeeded=pb.AttemptSucceeded())
    assert await reported(stand, stale) == [pb.VERDICT_STALE]
    assert (await stand.get(result.job.id)).job.state == job_pb2.JOB_STATE_DISPATCHED


async def test_a_failure_with_attempts_left_is_scheduled_again_and_nudged(stand):
    (result,) = await stand.put(
        new_job(retry_policy={"max_attempts": 2, "initial_delay": {"nanos": 10**6}})
    )
    claimed = await claim(stand, result.job)
    stand.nudges.clear()
    failure = job_pb2.Failure(type="ValueError", message="no")
    failed = report(claimed.id, claimed.fence, failed=pb.AttemptFailed(failure=failure))
    assert await reported(stand, failed) == [pb.VERDICT_COMMITTED]
    await eventually(lambda: stand.nudges)
    job = (await stand.get(result.job.id)).job
    assert (job.state, job.failure.type) == (job_pb2.JOB_STATE_SCHEDULED, "ValueError")


async def test_a_report_that_says_nothing_is_invalid(stand):
    assert await reported(stand, pb.AttemptReport(job_id=b"short", dispatch_no=1)) == [
        pb.VERDICT_INVALID
    ]


async def test_puts_over_one_call_are_stored_as_by_calls_of_their_own(stand):
    call = stand.stub.PutJobsStream()
    assert await call.read() == pb.PutJobsStreamResponse(), "it is open"
    for number, key in enumerate(("one", "two", "one"), start=1):
        put = pb.PutJobsRequest(jobs=[new_job(key=key)])
        await call.write(pb.PutJobsStreamRequest(put_id=number, put=put))
    answers = [await call.read() for _ in range(3)]
    by_number = {answer.put_id: answer.answer.results[0] for answer in answers}
    assert by_number[1].job.id == by_number[3].job.id != by_number[2].job.id
    assert by_number[1].existing != by_number[3].existing
    assert (await stand.get(by_number[2].job.id)).job.id == by_number[2].job.id
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_an_orchestrator_that_drains_says_so_on_the_line_and_waits_for_its_end(stand):
    call = stand.stub.PutJobsStream()
    await call.read()
    stand.process.stop("drain")
    assert (await call.read()).draining
    await call.write(pb.PutJobsStreamRequest(put_id=1, put=pb.PutJobsRequest(jobs=[new_job()])))
    assert (await call.read()).answer.results[0].job.id
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_stream_without_hello_is_refused(stand):
    call = stand.stub.ReportAttempts()
    await call.write(pb.ReportAttemptsRequest())
    with pytest.raises(InvalidField, match="hello"):
        await call.read()


async def test_cancelling_a_job_in_hand_tells_its_worker(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job, "w-9")
    told: list[bus_pb2.CancelHint] = []
    await stand.bus.subscribe(
        stand.subjects.cancel("w-9"),
        lambda message: told.append(bus_pb2.CancelHint.FromString(message.payload)),
    )
    answer = await stand.stub.CancelJobs(
        pb.OrchestratorServiceCancelJobsRequest(namespace="default", job_ids=[result.job.id])
    )
    assert answer.results[0].cancelled
    assert answer.results[0].job.state == job_pb2.JOB_STATE_CANCELLED
    await eventually(lambda: told)
    assert [(a.job_id, a.dispatch_no) for a in told[0].attempts] == [
        (claimed.id.bytes, claimed.fence)
    ]
    late = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    assert await reported(stand, late, worker="w-9") == [pb.VERDICT_STALE]


async def test_cancelling_what_has_ended_says_who_won(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    await reported(stand, done)
    answer = await stand.stub.CancelJobs(
        pb.OrchestratorServiceCancelJobsRequest(namespace="default", job_ids=[result.job.id])
    )
    assert not answer.results[0].cancelled
    assert answer.results[0].job.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_events_are_read_after_a_version(stand):
    (result,) = await stand.put(new_job())
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    await reported(stand, done)
    cursor = pb.EventCursor(job_id=result.job.id, after_version=1)
    events = (await stand.stub.ListEvents(pb.ListEventsRequest(cursors=[cursor]))).events
    assert [event.version for event in events] == [2, 3, 4]
    assert events[-1].state == job_pb2.JOB_STATE_SUCCEEDED


async def test_statistics_come_at_once_and_at_every_change(stand):
    call = stand.stub.Stats(pb.StatsRequest(interval={"seconds": 60}))
    async with asyncio.timeout(10):
        assert list((await call.read()).types) == []
        await stand.put(*(new_job("render") for _ in range(5)))
        load = await call.read()
    assert [(t.type, t.backlog, t.in_flight) for t in load.types] == [("render", 5, 0)]
    call.cancel()


async def test_statistics_come_when_a_job_becomes_due(stand):
    await stand.put(new_job("later", delay={"nanos": 700_000_000}))
    call = stand.stub.Stats(pb.StatsRequest(interval={"seconds": 60}))
    async with asyncio.timeout(10):
        first = await call.read()
        assert [(t.type, t.backlog) for t in first.types] == [("later", 0)]
        load = await call.read()
    assert [(t.type, t.backlog) for t in load.types] == [("later", 1)]
    call.cancel()


async def test_statistics_come_when_a_scheduler_has_released_a_job(stand):
    (parent,) = await stand.put(new_job())
    dependency = job_pb2.Dependency(job_id=parent.job.id)
    await stand.put(new_job("child", dependencies=[dependency]))
    claimed = await claim(stand, parent.job)
    await reported(stand, report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded()))
    call = stand.stub.Stats(pb.StatsRequest(interval={"seconds": 60}))
    async with asyncio.timeout(10):
        assert list((await call.read()).types) == []
        # As a scheduler does it: the Orchestrator has no part in it.
        for store in stand.stores.values():
            await store.release([Parent(claimed.id, JobState.SUCCEEDED)], 10)
        nudge = bus_pb2.Nudge(shard="s0").SerializeToString()
        await stand.bus.publish(stand.subjects.due("child"), nudge)
        while not (load := await call.read()).types:
            pass
    assert [(t.type, t.backlog) for t in load.types] == [("child", 1)]
    call.cancel()


async def test_schedules_are_created_found_paused_and_deleted(stand):
    schedule = {
        "name": "nightly",
        "template": {"type": "echo"},
        "recurrences": [{"interval": {"every": {"seconds": 60}}}],
    }
    put = pb.PutScheduleRequest(namespace="default", schedule=schedule)
    made = (await stand.stub.PutSchedule(put)).schedule
    assert made.next_time.seconds % 60 == 0
    assert (await stand.stub.PutSchedule(put)).schedule.create_time == made.create_time
    schedule["template"]["priority"] = 3
    with pytest.raises(ScheduleExists):
        await stand.stub.PutSchedule(pb.PutScheduleRequest(namespace="default", schedule=schedule))
    paused = await stand.stub.PauseSchedule(
        pb.OrchestratorServicePauseScheduleRequest(
            namespace="default", name="nightly", paused=True, note="holidays"
        )
    )
    assert (paused.schedule.paused, paused.schedule.pause_note) == (True, "holidays")
    page = await stand.stub.ListSchedules(
        pb.OrchestratorServiceListSchedulesRequest(namespace="default", page_size=10)
    )
    assert [found.name for found in page.schedules] == ["nightly"]
    name = {"namespace": "default", "name": "nightly"}
    await stand.stub.DeleteSchedule(pb.OrchestratorServiceDeleteScheduleRequest(**name))
    with pytest.raises(ScheduleNotFound):
        await stand.stub.GetSchedule(pb.OrchestratorServiceGetScheduleRequest(**name))


def block(dsn: str) -> None:
    """Make a shard refuse everybody but us, as if it were away."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    admin = psycopg.conninfo.make_conninfo(dsn, dbname="postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )


def unblock(dsn: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    admin = psycopg.conninfo.make_conninfo(dsn, dbname="postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


async def shard_health(stand: Stand, name: str, wanted: int) -> None:
    call = stand.stub.WatchTopology(pb.WatchTopologyRequest())
    async with asyncio.timeout(20):
        async for response in call:
            if any(s.name == name and s.health == wanted for s in response.topology.shards):
                break
    call.cancel()


async def test_a_shard_that_is_away_hurts_only_its_own_jobs(stand, shard_dsns):
    stored = [(await stand.put(new_job()))[0].job for _ in range(9)]
    block(shard_dsns[1])
    try:
        await shard_health(stand, "s1", topology_pb2.SHARD_HEALTH_AWAY)
        for job in stored:
            found = await stand.get(job.id)
            expected = "SHARD_UNAVAILABLE" if job.shard == "s1" else ""
            assert found.error.reason == expected
        fresh = [(await stand.put(new_job()))[0].job.shard for _ in range(6)]
        assert set(fresh) == {"s0", "s2"}
        page = await stand.stub.ListJobs(
            pb.OrchestratorServiceListJobsRequest(namespace="default", page_size=100)
        )
        assert list(page.missing_shards) == ["s1"]
        assert {job.shard for job in page.jobs} == {"s0", "s2"}
        assert stand.process.readiness.ready
    finally:
        unblock(shard_dsns[1])
    await shard_health(stand, "s1", topology_pb2.SHARD_HEALTH_HEALTHY)
    for job in stored:
        assert (await stand.get(job.id)).job.id == job.id


async def test_a_keyed_job_is_never_sent_to_another_shard(stand, shard_dsns):
    topology = (await stand.stub.ListShards(pb.ListShardsRequest())).topology
    away = next(s for s in topology.shards if s.name == "s1")
    low, high = getattr(away.buckets[0], "from"), away.buckets[0].until
    key = next(k for k in map(str, range(1000)) if low <= ids.bucket_for_key("default", k) < high)
    block(shard_dsns[1])
    try:
        await shard_health(stand, "s1", topology_pb2.SHARD_HEALTH_AWAY)
        (refused,) = await stand.put(new_job(key=key))
        assert refused.error.reason == "SHARD_UNAVAILABLE"
        assert refused.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    finally:
        unblock(shard_dsns[1])
    await shard_health(stand, "s1", topology_pb2.SHARD_HEALTH_HEALTHY)
    (stored,) = await stand.put(new_job(key=key))
    assert stored.job.shard == "s1"


async def test_reports_for_a_shard_that_is_away_are_to_be_sent_again(stand, shard_dsns):
    while True:
        (result,) = await stand.put(new_job())
        if result.job.shard == "s1":
            break
    claimed = await claim(stand, result.job)
    done = report(claimed.id, claimed.fence, succeeded=pb.AttemptSucceeded())
    block(shard_dsns[1])
    try:
        await shard_health(stand, "s1", topology_pb2.SHARD_HEALTH_AWAY)
        assert await reported(stand, done) == [pb.VERDICT_RETRY]
    finally:
        unblock(shard_dsns[1])
    await shard_health(stand, "s1", topology_pb2.SHARD_HEALTH_HEALTHY)
    assert await reported(stand, done) == [pb.VERDICT_COMMITTED]


async def test_a_second_orchestrator_finds_the_map_of_the_first(
    stand, shard_dsns, nats_url, etcd_endpoint, unique_prefix
):
    async with orchestrator(shard_dsns, nats_url, etcd_endpoint, unique_prefix) as second:
        (result,) = await stand.put(new_job())
        assert (await second.get(result.job.id)).job.id == result.job.id
        topology = (await second.stub.ListShards(pb.ListShardsRequest())).topology
        assert topology.epoch == 1


async def test_a_wiped_etcd_gets_the_same_map_back(stand, etcd_endpoint, unique_prefix):
    (result,) = await stand.put(new_job())
    keys = Keys(f"/{unique_prefix}")
    etcd = EtcdClient(EtcdSettings((etcd_endpoint,)))
    registry = EtcdRegistry(etcd)
    before = await registry.get(keys.topology)
    await registry.delete(keys.topology)

    async def is_back() -> bool:
        return await registry.get(keys.topology) is not None

    await eventually(is_back)
    after = await registry.get(keys.topology)
    assert before is not None
    assert after is not None
    assert after.value == before.value
    assert (await stand.get(result.job.id)).job.id == result.job.id
    await etcd.close()


async def test_successes_in_columns_are_committed_one_by_one_under_their_fences(stand):
    done, stale, failed = [
        await claim(stand, (await stand.put(new_job()))[0].job) for _ in range(3)
    ]
    columns = pb.SucceededAttempts(
        job_ids=done.id.bytes + stale.id.bytes,
        dispatch_nos=[done.fence, stale.fence + 1],
        elapsed_us=[2_000, 0],
        outputs=[b"one", b"two"],
        content_type="text/plain",
    )
    failure = pb.AttemptFailed(failure=job_pb2.Failure(type="E", message="no", permanent=True))
    verdicts = await reported_in_columns(
        stand, columns, report(failed.id, failed.fence, failed=failure)
    )
    assert verdicts == {
        (done.id, done.fence): pb.VERDICT_COMMITTED,
        (stale.id, stale.fence + 1): pb.VERDICT_STALE,
        (failed.id, failed.fence): pb.VERDICT_COMMITTED,
    }
    request = pb.GetJobsRequest(
        job_ids=[str(one.id) for one in (done, stale)], view=job_pb2.JOB_VIEW_FULL
    )
    first, second = [r.job for r in (await stand.stub.GetJobs(request)).results]
    assert (first.state, first.output.data) == (job_pb2.JOB_STATE_SUCCEEDED, b"one")
    assert first.output.content_type == "text/plain"
    assert second.state == job_pb2.JOB_STATE_DISPATCHED
    again = await reported_in_columns(stand, columns)
    assert again[done.id, done.fence] == pb.VERDICT_COMMITTED
