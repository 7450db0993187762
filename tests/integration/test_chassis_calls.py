"""Calls and streams through the chassis: checks, deadlines, balancing, retries, the polite end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import enqueue_service_pb2_grpc as pb_grpc
from jobmesh.v1.job_pb2 import Job, JobSpec
from jobmesh.v1.payload_pb2 import Payload

from services.mesh.errors import (
    DependencyUnavailable,
    Draining,
    InvalidField,
    JobNotFound,
    MeshError,
    SlowConsumer,
)
from services.mesh.rpc import open_channel
from services.mesh.rpc.channel import resolve, service_config
from services.mesh.rpc.errors import from_rpc_error
from services.mesh.rpc.interceptors.deadline import Deadlines
from services.mesh.rpc.server import MAX_PUT_BYTES, MAX_RECEIVE_BYTES
from services.mesh.runtime import StartupError, Tally, deadline
from services.mesh.testing.faults import FaultProxy, Link
from tests.integration.chassis_mesh import JOB_ID, SERVICE, get_job, mesh


async def ack(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Acknowledges each message of an EnqueueStream by the number of items so far."""
    count = 0
    async for request in requests:
        count += len(request.items)
        yield pb.EnqueueStreamResponse(first_item=count)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def batch(size: int) -> pb.EnqueueStreamRequest:
    return pb.EnqueueStreamRequest(items=[pb.EnqueueItem()] * size)


@pytest.mark.parametrize("limit", [MAX_RECEIVE_BYTES, MAX_PUT_BYTES])
async def test_a_message_may_be_as_large_as_its_server_takes(limit: int) -> None:
    async def count(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            yield pb.EnqueueStreamResponse(first_item=request.ByteSize())

    def message(size: int) -> pb.EnqueueStreamRequest:
        job = JobSpec(input=Payload(data=bytes(size)))
        return pb.EnqueueStreamRequest(items=[pb.EnqueueItem(job=job)])

    async with mesh(receive_bytes=limit) as m:
        m.sample.on_stream = count
        framing = message(limit).ByteSize() - limit
        for size in (limit - framing, limit):
            call = m.stub.EnqueueStream()
            await call.write(message(size))
            if size == limit:
                with pytest.raises(MeshError, match="larger than max"):
                    await call.read()
            else:
                assert (await call.read()).first_item == limit
                call.cancel()


async def test_bidirectional_stream_runs_both_ways() -> None:
    async with mesh() as m:
        m.sample.on_stream = ack
        call = m.stub.EnqueueStream()
        for size in (1, 2):
            await call.write(batch(size))
            response = await call.read()
            assert isinstance(response, pb.EnqueueStreamResponse)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@pytest.mark.parametrize("ending", [JobNotFound(JOB_ID), None])
async def test_write_to_a_call_that_has_ended_says_how_it_ended(ending: JobNotFound | None) -> None:
    async def end(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        if ending is not None:
            raise ending
        for nothing in ():
            yield nothing

    async with mesh() as m:
        m.sample.on_stream = end
        call = m.stub.EnqueueStream()
        await call.code()  # it has ended, and nobody has read that
        with pytest.raises(JobNotFound if ending else DependencyUnavailable):
            await call.write(batch(1))


async def test_bad_message_inside_a_stream_ends_it_with_its_fields() -> None:
    async with mesh() as m:
        m.sample.on_stream = ack

        async def requests() -> AsyncIterator[Any]:
            yield batch(1)
            yield pb.EnqueueStreamRequest(namespace="Not Good")

        stream = aiter(m.stub.EnqueueStream(requests()))
        assert (await anext(stream)).first_item == 1
        with pytest.raises(InvalidField) as caught:
            await anext(stream)
    assert caught.value.violations[0].field == "namespace"


async def test_error_in_a_server_stream_arrives_after_its_responses() -> None:
    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.WatchJobsResponse()
        raise JobNotFound(JOB_ID)

    async with mesh() as m:
        m.sample.on_watch = watch
        stream = aiter(m.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[JOB_ID])))
        await anext(stream)
        with pytest.raises(JobNotFound):
            await anext(stream)


async def test_client_stream_is_awaited_for_its_one_response() -> None:
    async def upload(requests: AsyncIterator[Any], context: Any) -> Any:
        chunks = [request.chunk async for request in requests]
        return pb.UploadInputResponse(payload=Payload(data=b"".join(chunks)))

    async with mesh() as m:
        m.sample.on_upload = upload

        async def requests() -> AsyncIterator[Any]:
            yield pb.UploadInputRequest(chunk=b"12345")
            yield pb.UploadInputRequest(chunk=b"678")

        response = await m.stub.UploadInput(requests())
    assert response.payload.data == b"12345678"


async def test_handler_sees_the_deadline_of_its_caller() -> None:
    seen: list[float | None] = []

    async def get(request: Any, context: Any) -> Any:
        seen.append(deadline.remaining())
        return pb.GetJobResponse()

    async with mesh() as m:
        m.sample.on_get = get
        await m.stub.GetJob(get_job(), timeout=2.0)
        await m.stub.GetJob(get_job())
        await pb_grpc.EnqueueServiceStub(m.bare).GetJob(get_job())
    explicit, default, none = (left or 0.0 for left in seen)
    # gRPC rounds deadlines on the wire, and up.
    assert 1.0 < explicit < 2.1
    assert 4.0 < default < 5.1
    assert 50.0 < none <= 60.0


async def test_a_call_without_a_deadline_is_ended_when_it_takes_too_long(monkeypatch) -> None:
    async def get(request: Any, context: Any) -> Any:
        if request.namespace == "slow":
            await asyncio.Event().wait()
        return pb.GetJobResponse()

    monkeypatch.setattr(Deadlines.__init__, "__defaults__", (0.05,))
    async with mesh() as m:
        m.sample.on_get = get
        bare = pb_grpc.EnqueueServiceStub(m.bare)
        slow = bare.GetJob(get_job("slow"))
        await bare.GetJob(get_job())
        assert await slow.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert from_rpc_error(await _failure(slow)).reason == "DEADLINE_EXCEEDED"
        await bare.GetJob(get_job())


async def test_a_call_without_a_deadline_may_wait_for_as_long_as_it_asks_to(monkeypatch) -> None:
    seen: list[float] = []
    ended = asyncio.Event()

    async def get(request: Any, context: Any) -> Any:
        seen.append(deadline.remaining() or 0.0)
        await ended.wait()
        return pb.GetJobResponse()

    def wait_of(request: pb.GetJobRequest) -> float:
        return {"long": 100.0, "short": 0.01}.get(request.namespace, 0.0)

    monkeypatch.setattr(Deadlines.__init__, "__defaults__", (0.05,))
    async with mesh(waits={"GetJob": wait_of}) as m:
        m.sample.on_get = get
        bare = pb_grpc.EnqueueServiceStub(m.bare)
        calls = {name: bare.GetJob(get_job(name)) for name in ("long", "short", "none")}
        for name in ("short", "none"):
            assert await calls[name].code() is grpc.StatusCode.DEADLINE_EXCEEDED
        ended.set()
        await calls["long"]
    assert max(seen) > 99.0


async def _failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_deadline_shrinks_from_hop_to_hop() -> None:
    seen: list[float] = []

    async with AsyncExitStack() as stack:
        hops = [await stack.enter_async_context(mesh()) for _ in range(3)]

        def forward(index: int) -> Any:
            async def get(request: Any, context: Any) -> Any:
                seen.append(deadline.remaining() or 0.0)
                if index + 1 < len(hops):
                    return await hops[index + 1].stub.GetJob(request, timeout=60.0)
                return await asyncio.Event().wait()

            return get

        for index, hop in enumerate(hops):
            hop.sample.on_get = forward(index)
        began = time.monotonic()
        with pytest.raises(MeshError):
            await hops[0].stub.GetJob(get_job(), timeout=0.5)
        took = time.monotonic() - began
    assert seen == sorted(seen, reverse=True)
    assert all(0 < left < 0.6 for left in seen)
    assert took < 3.0


async def test_calls_go_to_all_addresses_in_turn() -> None:
    async with mesh() as one, mesh() as two:
        served: list[str] = []

        def name(which: str) -> Any:
            async def get(request: Any, context: Any) -> Any:
                served.append(which)
                return pb.GetJobResponse()

            return get

        one.sample.on_get, two.sample.on_get = name("one"), name("two")
        target = f"{one.server.address}, {two.server.address}"
        async with open_channel(target, peer="enqueue") as channel:
            await channel.start()
            stub = pb_grpc.EnqueueServiceStub(channel)
            async with asyncio.timeout(10):
                while len(set(served)) < 2:
                    await stub.GetJob(get_job())


async def test_replica_that_fell_silent_gets_no_more_calls_after_seconds() -> None:
    async with AsyncExitStack() as stack:
        well, silent = [await stack.enter_async_context(mesh()) for _ in range(2)]
        link = await stack.enter_async_context(FaultProxy(port_of(silent.server.address)))
        target = f"{well.server.address},{link.address}"
        channel = open_channel(target, peer="sample", health=SERVICE.full_name)
        async with channel:
            stub = pb_grpc.EnqueueServiceStub(channel)
            async with asyncio.timeout(10):
                while not link.passed:
                    await stub.GetJob(get_job())
            link.become(Link.HOLD)
            began, streak = time.monotonic(), 0
            while streak < 6:
                assert time.monotonic() - began < 12
                try:
                    await stub.GetJob(get_job(), timeout=0.5)
                    streak += 1
                except MeshError:
                    streak = 0


async def test_idempotent_call_is_retried_and_others_are_not() -> None:
    attempts: list[str] = []

    async def get(request: Any, context: Any) -> Any:
        attempts.append("GetJob")
        if attempts.count("GetJob") < 3:
            raise Draining
        return pb.GetJobResponse()

    async def upload(requests: Any, context: Any) -> Any:
        attempts.append("UploadInput")
        raise Draining

    async with mesh() as m:
        m.sample.on_get, m.sample.on_upload = get, upload
        await m.stub.GetJob(get_job())
        with pytest.raises(Draining):
            await m.stub.UploadInput(iter([pb.UploadInputRequest(chunk=b"x")]))
    assert attempts == ["GetJob"] * 3 + ["UploadInput"]


async def test_what_a_draining_replica_has_not_begun_is_done_by_another() -> None:
    async with mesh() as leaving, mesh() as staying:
        target = f"{leaving.server.address},{staying.server.address}"
        served, ended = Tally(), asyncio.Event()

        async def get(request: Any, context: Any) -> Any:
            served.add()
            return pb.GetJobResponse()

        leaving.sample.on_get = get
        async with open_channel(target, peer="enqueue", services=[SERVICE]) as channel:
            stub = pb_grpc.EnqueueServiceStub(channel)

            async def ask() -> None:
                while not ended.is_set():
                    await stub.GetJob(get_job())

            # Some arrive that gRPC has not handed over; no more than the budget of retries bears.
            asking = [asyncio.create_task(ask()) for _ in range(24)]
            await served.reached(50)
            await leaving.server.finish(5)
            ended.set()
            await asyncio.gather(*asking)


async def test_a_call_that_the_transport_cancelled_says_that_its_peer_is_away() -> None:
    async def cancel(requests: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.CANCELLED)

    async with mesh() as m:
        m.sample.on_upload = cancel
        with pytest.raises(DependencyUnavailable):
            await m.stub.UploadInput(iter([pb.UploadInputRequest(chunk=b"x")]))


def test_retry_policy_is_read_off_the_contract() -> None:
    config = json.loads(service_config([SERVICE]))
    (policy,) = config["methodConfig"]
    methods = {name["method"] for name in policy["name"]}
    assert "GetJob" in methods
    assert "Enqueue" not in methods
    assert policy["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE", "CANCELLED"]


def test_target_is_a_name_or_a_list_of_addresses() -> None:
    assert resolve("127.0.0.1:1") == "127.0.0.1:1"
    assert resolve("dns:///mesh:7102") == "dns:///mesh:7102"
    assert resolve("127.0.0.1:1, localhost:2") == "ipv4:127.0.0.1:1,127.0.0.1:2"
    assert resolve("[::1]:1,[::1]:2") == "ipv6:[::1]:1,[::1]:2"
    for bad in ("", "a:1,b:2"):
        with pytest.raises(StartupError):
            resolve(bad)


async def test_drained_stream_ends_with_ok_and_does_not_hold_the_stop() -> None:
    async with mesh() as m:

        async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
            yield pb.WatchJobsResponse()
            await m.process.drain.wait()

        m.sample.on_watch, m.sample.on_stream = watch, lambda r, c: ack(m.process.drain.cut(r), c)
        following = m.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[JOB_ID]))
        await following.read()
        stream = m.stub.EnqueueStream()
        await stream.write(batch(1))
        await stream.read()
        m.process.drain.set()
        began = time.monotonic()
        await m.server.finish(10.0)
        assert time.monotonic() - began < 5.0
        assert await following.read() is grpc.aio.EOF
        assert await stream.read() is grpc.aio.EOF


async def test_peer_that_does_not_read_is_cut_off() -> None:
    ended = asyncio.Event()

    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield pb.WatchJobsResponse(resume_token="x" * 60_000)
        finally:
            ended.set()

    async with mesh(write_seconds=0.1) as m:
        m.sample.on_watch = watch
        call = m.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[JOB_ID]))
        await asyncio.wait_for(ended.wait(), timeout=10)
        with pytest.raises(SlowConsumer):
            _ = [response async for response in call]


async def test_peer_that_reads_in_its_own_time_is_not_cut_off() -> None:
    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.WatchJobsResponse()
        # Longer than a write may take: what counts is the peer's silence, not the handler's.
        await m.process.drain.sleep(0.8)
        yield pb.WatchJobsResponse()

    async with mesh(write_seconds=0.5) as m:
        m.sample.on_watch = watch
        call = m.stub.WatchJobs(pb.WatchJobsRequest(job_ids=[JOB_ID]))
        assert len([response async for response in call]) == 2


async def test_call_under_way_finishes_while_the_server_drains() -> None:
    inside, leave = asyncio.Event(), asyncio.Event()

    async def get(request: Any, context: Any) -> Any:
        inside.set()
        await leave.wait()
        return pb.GetJobResponse(job=Job(id=JOB_ID))

    async with mesh() as m:
        m.sample.on_get = get
        call = asyncio.ensure_future(m.stub.GetJob(get_job()))
        await inside.wait()
        finishing = asyncio.create_task(m.server.finish(10.0))
        await asyncio.sleep(0)
        leave.set()
        assert (await call).job.id == JOB_ID
        await finishing


async def test_second_server_on_the_same_port_is_refused_by_name() -> None:
    async with mesh() as m:
        with pytest.raises(StartupError, match=m.server.address):
            async with mesh(listen=m.server.address):
                pass
