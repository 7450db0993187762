"""Short words for what tests of the Orchestrator do: as Enqueue, scheduler, worker and operator."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
from jobmesh.v1 import job_pb2, payload_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from tests.integration.parts import Stand


def new_job(type_: str = "echo", data: bytes = b"hi", key: str = "", **spec) -> pb.NewJob:
    return pb.NewJob(
        namespace="default",
        spec=job_pb2.JobSpec(type=type_, input=payload_pb2.Payload(data=data), **spec),
        idempotency_key=key,
        request_hash=uuid.uuid5(uuid.NAMESPACE_OID, f"{type_} {data!r}").bytes * 2 if key else b"",
    )


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
