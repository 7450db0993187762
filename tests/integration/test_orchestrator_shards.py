"""The Orchestrator and its shards: where jobs are, what one that is away hurts, and the map."""

from __future__ import annotations

import uuid

import grpc
from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1 import topology_pb2

from services.mesh.jobs import ids
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.testing.waiting import eventually
from tests.integration.orchestrator_rig import (
    block,
    claim,
    new_job,
    report,
    reported,
    shard_health,
    unblock,
)
from tests.integration.parts import orchestrator


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
