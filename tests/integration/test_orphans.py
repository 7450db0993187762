"""The collector of orphaned objects, on the real stores: what goes, and above all what stays."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2, payload_pb2

from services.enqueue.adapters.orphans import EtcdTurns, OrchestratorOrphans
from services.enqueue.app.collecting import Collector, Shelf
from services.enqueue.app.inputs import Inputs
from services.mesh.blob import Listed, StoredObject, input_key, output_key
from services.mesh.blob.s3 import S3BlobStore, S3Connection, S3Settings
from services.mesh.clock import SystemClock
from services.mesh.errors import ObjectNotFound, ShardUnavailable
from services.mesh.jobs.ids import parse
from services.mesh.jobs.model import ObjectRef
from services.mesh.lease.etcd import EtcdClient, EtcdSettings, LeaseSession
from services.mesh.telemetry.metrics import Metrics
from tests.integration import test_enqueue
from tests.integration.test_schedules import create

desk = test_enqueue.desk

DAY = timedelta(days=1)


class Stores:
    """The two stores, and collectors of them."""

    def __init__(self, desk, settings, endpoint: str) -> None:
        self.desk = desk
        self.connection = S3Connection(
            S3Settings(settings.endpoint, "", settings.access_key, settings.secret_key)
        )
        self.inputs = S3BlobStore(self.connection, settings.input_bucket)
        self.outputs = S3BlobStore(self.connection, settings.output_bucket)
        self.etcd = EtcdClient(EtcdSettings((endpoint,)))

    def collector(self, age: timedelta = timedelta(0), dry_run: bool = False) -> Collector:
        orphans = OrchestratorOrphans(self.desk.mesh.stub)
        shelves = {
            "input": Shelf(self.inputs, orphans.inputs),
            "output": Shelf(self.outputs, orphans.outputs),
        }
        key = self.desk.keys.collector
        turns = EtcdTurns(self.desk.registry, key, "test", lambda: LeaseSession.grant(self.etcd))
        metrics = Metrics()
        return Collector(
            shelves, turns, SystemClock(), metrics, interval=60, age=age, dry_run=dry_run
        )

    async def keys(self, store: S3BlobStore) -> set[str]:
        return {one.key for one in await store.page("", 1000)}

    async def upload(self, data: bytes = b"x" * 100) -> ObjectRef:
        return await self.inputs.put_bytes(input_key("default", uuid.uuid4()), data)


@pytest.fixture
async def stores(desk, s3_settings, etcd_endpoint):
    made = Stores(desk, s3_settings, etcd_endpoint)
    yield made
    await made.connection.close()
    await made.etcd.close()


async def submit(desk, ref: ObjectRef, **fields) -> pb.EnqueueResponse:
    given = payload_pb2.Payload(object={"key": ref.key, "size_bytes": ref.size})
    job = {"type": "echo", "input": given} | fields
    return await desk.stub.Enqueue(pb.EnqueueRequest(job=job))


async def test_inputs_nobody_refers_to_go_and_all_others_stay(desk, stores):
    forgotten, used, planned = [await stores.upload() for _ in range(3)]
    await submit(desk, used)
    template = {"type": "echo", "input": {"object": {"key": planned.key}}}
    await create(desk, template=template)
    strange = await stores.inputs.put_bytes("default/other/thing", b"?")
    assert (await stores.collector(age=DAY).run_once())["collected"] == 0
    assert (await stores.collector(dry_run=True).run_once())["collected"] >= 1
    assert forgotten.key in await stores.keys(stores.inputs)
    await stores.collector().run_once()
    left = await stores.keys(stores.inputs)
    assert forgotten.key not in left
    assert {used.key, planned.key, strange.key} <= left


async def test_of_outputs_only_what_a_row_refers_to_or_may_come_to_stays(desk, stores):
    done, running = (await desk.enqueue()).job, (await desk.enqueue()).job
    ids = {job.id: parse(job.id) for job in (done, running)}
    good = output_key("default", ids[done.id], 1, "output")
    log = output_key("default", ids[done.id], 1, "log")
    refused = output_key("default", ids[done.id], 7, "output")
    early = output_key("default", ids[running.id], 0, "output")
    current = output_key("default", ids[running.id], 1, "output")
    gone = output_key("default", uuid.UUID(int=ids[done.id].int + 1), 1, "log")
    for key in (good, log, refused, early, current, gone):
        await stores.outputs.put_bytes(key, b"o")
    ref = {"key": good, "size_bytes": 1}
    await desk.run(done, payload_pb2.Payload(object=ref))
    await desk.mesh.stores[running.shard].claim("echo", "w-1", 1)
    await stores.collector().run_once()
    left = await stores.keys(stores.outputs)
    assert {good, log, current} <= left
    assert not left & {refused, early, gone}


async def test_a_shard_that_is_away_keeps_everything(desk, stores):
    lost = await stores.upload()

    async def away(keys):
        raise ShardUnavailable("s1")

    collector = stores.collector()
    collector._shelves = {"input": Shelf(stores.inputs, away)}
    assert (await collector.run_once())["collected"] == 0
    assert lost.key in await stores.keys(stores.inputs)


async def test_one_collector_at_a_time(desk, stores):
    collector = stores.collector()
    async with collector._turns.turn() as first:
        assert first is not None
        assert first()
        async with asyncio.timeout(10), stores.collector()._turns.turn() as second:
            assert second is None


async def test_an_old_input_is_copied_when_a_job_comes_to_refer_to_it(stores):
    old = await stores.upload(b"again")
    fresh = Inputs(stores.inputs, 10, 1000, SystemClock(), renew_after=DAY)
    assert (await fresh.verify("default", old)).key == old.key
    renewing = Inputs(stores.inputs, 10, 1000, SystemClock(), renew_after=timedelta(0))
    ref = await renewing.verify("default", old)
    assert ref.key != old.key
    assert ref.sha256 == old.sha256
    assert await stores.inputs.get_bytes(ref.key, sha256=old.sha256) == b"again"


class Aged(S3BlobStore):
    """The store, with some objects as if they had been written long ago."""

    old: frozenset[str] = frozenset()

    async def page(self, after: str = "", limit: int = 1000) -> list[Listed]:
        page = await super().page(after, limit)
        return [replace(o, time=o.time - 2 * DAY) if o.key in self.old else o for o in page]

    async def head(self, key: str) -> StoredObject:
        found = await super().head(key)
        assert found.time is not None
        return replace(found, time=found.time - 2 * DAY) if key in self.old else found


async def test_racing_submits_never_lose_their_input(desk, stores):
    uploads = [await stores.upload(f"{n}".encode() * 50) for n in range(20)]
    aged = Aged(stores.connection, stores.inputs._bucket)
    aged.old = frozenset(ref.key for ref in uploads)
    stores.inputs = aged
    verify = Inputs(aged, 10, 10_000, SystemClock(), renew_after=DAY / 2).verify

    async def send(ref: ObjectRef) -> tuple[str, bytes] | None:
        try:
            renewed = await verify("default", ref)
        except ObjectNotFound:
            return None  # it was collected first: refused, and nothing is stored
        return (await submit(desk, renewed)).job.id, ref.sha256

    first = await send(uploads[0])
    assert first is not None
    collecting = asyncio.create_task(stores.collector(age=DAY).run_once(), name="collect")
    sent = [first, *[await send(ref) for ref in uploads[1:]]]
    await collecting
    await stores.collector(age=DAY).run_once()
    assert not aged.old & await stores.keys(aged)
    for job_id, sha256 in (one for one in sent if one is not None):
        job = await desk.get(job_id)
        assert await aged.get_bytes(job.spec.input.object.key, sha256=sha256)


async def test_garbage_is_never_an_orphan(desk):
    keys = ["", "x", "../..", "default/outputs/no/1/output", "a/inputs/zzz", "é" * 50]
    request = orchestrator_service_pb2.FindOrphansRequest(input_keys=keys, output_keys=keys)
    answer = await desk.mesh.stub.FindOrphans(request)
    assert not answer.input_keys
    assert not answer.output_keys
