"""An Enqueue over a real Orchestrator, shards, NATS, etcd and object store, and who talks to it."""

from __future__ import annotations

import asyncio

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2, payload_pb2
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub

from services.enqueue.config import EnqueueConfig
from services.enqueue.main import build
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.store.postgres import PostgresShard
from tests.integration.parts import orchestrator, served

SCHEDULED = job_pb2.JOB_STATE_SCHEDULED


class Desk:
    """A client, and the hands of a worker."""

    def __init__(self, mesh, stub: EnqueueServiceStub, registry: EtcdRegistry, keys: Keys) -> None:
        self.mesh, self.stub, self.registry, self.keys = mesh, stub, registry, keys

    async def announce(self, type_: str) -> None:
        await self.registry.put(self.keys.type(type_), b"")

    async def enqueue(self, data: bytes = b"hi", key: str = "", **spec) -> pb.EnqueueResponse:
        job = job_pb2.JobSpec(type="echo", input=payload_pb2.Payload(data=data), **spec)
        return await self.stub.Enqueue(pb.EnqueueRequest(job=job, idempotency_key=key))

    async def get(self, job_id: str) -> job_pb2.Job:
        request = pb.GetJobRequest(job_id=job_id, view=job_pb2.JOB_VIEW_FULL)
        return (await self.stub.GetJob(request)).job

    async def run(self, job: job_pb2.Job, output: payload_pb2.Payload | None = None) -> None:
        """Claim and complete the job as a scheduler and a worker would."""
        store: PostgresShard = self.mesh.stores[job.shard]
        claimed = (await store.claim("echo", "w-1", 1)).jobs[0]
        report = orchestrator_service_pb2.AttemptReport(
            job_id=claimed.id.bytes, dispatch_no=claimed.fence, succeeded={"output": output}
        )
        call = self.mesh.stub.ReportAttempts()
        hello = orchestrator_service_pb2.ReportHello(worker_id="w-1")
        await call.write(
            orchestrator_service_pb2.ReportAttemptsRequest(hello=hello, reports=[report])
        )
        await call.read()
        await call.done_writing()


@pytest.fixture
async def desk(shard_dsns, nats_url, etcd_endpoint, unique_prefix, s3_settings):
    etcd = EtcdClient(EtcdSettings((etcd_endpoint,)))
    async with orchestrator(shard_dsns, nats_url, etcd_endpoint, unique_prefix) as mesh:
        config = EnqueueConfig(
            listen="127.0.0.1:0",
            orchestrator_target=mesh.address,
            nats_url=nats_url,
            nats_prefix=unique_prefix,
            etcd_endpoints=(etcd_endpoint,),
            etcd_prefix=f"/{unique_prefix}",
            s3_endpoint=s3_settings.endpoint,
            s3_access_key=s3_settings.access_key,
            s3_secret_key=s3_settings.secret_key,
            s3_input_bucket=s3_settings.input_bucket,
            s3_output_bucket=s3_settings.output_bucket,
            reread_seconds=0.2,
            heartbeat_seconds=4.0,
        )
        async with served("enqueue", config, build) as (process, channel, _):
            keys = Keys(f"/{unique_prefix}")
            made = Desk(mesh, EnqueueServiceStub(channel), EtcdRegistry(etcd), keys)
            made.process, made.config = process, config
            await made.announce("echo")
            yield made
    await etcd.close()


async def read(call, count: int) -> list[pb.WatchJobsResponse]:
    async with asyncio.timeout(10):
        return [await call.read() for _ in range(count)]


async def rows(desk: Desk) -> int:
    page = await desk.stub.ListJobs(pb.ListJobsRequest(page_size=1000))
    return len(page.jobs)
