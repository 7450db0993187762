"""Puts over one call: the same answers, errors and doubts as by calls of their own."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import grpc
import pytest
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2_grpc as rpc

from services.enqueue.adapters import put_line
from services.enqueue.adapters.put_line import PutLine
from services.enqueue.adapters.submitting import Submitter
from services.enqueue.app.turnstile import Turnstile
from services.enqueue.convert import Single
from services.mesh.errors import OutcomeUnknown, Overloaded
from services.mesh.rpc import open_channel
from services.mesh.runtime import Tasks, deadline
from services.mesh.testing.waiting import eventually
from services.orchestrator import servicer_puts
from services.orchestrator.servicer_puts import PutStream


class Peer(rpc.OrchestratorServiceServicer):
    """An Orchestrator that stores nothing; says by which way each put came."""

    def __init__(self) -> None:
        self.ways: list[str] = []
        self.streams: list[PutStream] = []
        self.left: list[float | None] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}

    async def PutJobs(self, request, context):
        return await self._put("call", request)

    async def PutJobsStream(self, request_iterator, context):
        stream = PutStream(partial(self._put, "line"), context)
        self.streams.append(stream)
        reader = asyncio.create_task(stream.read(request_iterator))
        try:
            async for response in stream.responses():
                yield response
        finally:
            reader.cancel()
            await stream.stop()

    async def _put(self, way, request):
        name = request.jobs[0].namespace
        self.ways.append(way)
        self.left.append(deadline.remaining())
        if name in self.gates:
            await self.gates[name].wait()
        if name in self.errors:
            raise self.errors[name]
        return pb.PutJobsResponse(results=[pb.PutJobResult(job=job_pb2.Job(id=name))])


class Older(Peer):
    """One of the version before."""

    PutJobsStream = rpc.OrchestratorServiceServicer.PutJobsStream


class Closed(Peer):
    """One that ends a line before it has said anything."""

    async def PutJobsStream(self, request_iterator, context):
        self.ways.append("closed")
        for response in ():
            yield response


class Desk:
    def __init__(self, peer: Peer, server: grpc.aio.Server, channel, tasks: Tasks) -> None:
        self.peer, self.server = peer, server
        stub = rpc.OrchestratorServiceStub(channel)
        self.line = PutLine(stub, tasks)
        self.submitter = Submitter(stub, Turnstile(), self.line)

    async def put(self, name: str, size: int = 0) -> str:
        job = pb.NewJob(namespace=name, idempotency_key="k" * size)
        (result,) = await self.submitter.put("", [Single(job)])
        return result.job.id

    async def opened(self) -> None:
        """Put until it goes over the line."""
        await self.put("first")
        await eventually(lambda: self.line.taken(0) is not None)
        self.peer.ways.clear()


async def serve(peer: Peer):
    server = grpc.aio.server()
    rpc.add_OrchestratorServiceServicer_to_server(peer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
async def desk(request):
    peer, tasks = getattr(request, "param", Peer)(), Tasks()
    server, address = await serve(peer)
    async with open_channel(address, peer="orchestrator") as channel:
        yield Desk(peer, server, channel, tasks)
        await tasks.stop()
    await server.stop(None)


async def test_the_first_put_goes_by_a_call_and_the_next_over_the_line(desk):
    assert await desk.put("a") == "a"
    await eventually(lambda: desk.line.taken(0) is not None)
    assert [await desk.put("b"), await desk.put("c")] == ["b", "c"]
    assert desk.peer.ways == ["call", "line", "line"]


async def test_each_put_has_its_own_answer_in_any_order(desk):
    await desk.opened()
    gate = desk.peer.gates["slow"] = asyncio.Event()
    slow = asyncio.create_task(desk.put("slow"))
    await eventually(lambda: desk.peer.ways == ["line"])
    assert await desk.put("quick") == "quick"
    gate.set()
    assert await slow == "slow"


async def test_an_error_is_of_its_put_only(desk):
    await desk.opened()
    desk.peer.errors["full"] = Overloaded("too much")
    with pytest.raises(Overloaded, match="too much"):
        await desk.put("full")
    desk.peer.errors["late"] = TimeoutError()
    with pytest.raises(OutcomeUnknown):
        await desk.put("late")
    assert await desk.put("a") == "a"
    assert desk.peer.ways == ["line"] * 3


async def test_a_put_has_the_deadline_of_a_call(desk):
    await desk.opened()
    await desk.put("a")
    assert 9 < desk.peer.left[-1] <= 10


@pytest.mark.parametrize("desk", [Older], indirect=True)
async def test_an_orchestrator_of_the_version_before_gets_calls(desk):
    await desk.put("a")
    await eventually(lambda: desk.line._not_before > 0)
    assert desk.line._not_before > asyncio.get_running_loop().time() + 30, "nor is it asked again"
    assert await desk.put("b") == "b"
    assert desk.peer.ways == ["call", "call"]


@pytest.mark.parametrize("desk", [Closed], indirect=True)
async def test_a_call_that_ends_before_it_says_anything_is_no_line(desk, monkeypatch):
    lines = []
    monkeypatch.setattr(put_line, "_Line", lambda *given: lines.append(given))
    await desk.put("a")
    await eventually(lambda: desk.line._not_before > 0)
    assert not lines
    assert await desk.put("b") == "b"


async def test_what_is_under_way_when_the_line_breaks_is_unknown(desk):
    await desk.opened()
    desk.peer.gates["a"] = asyncio.Event()
    puts = [asyncio.create_task(desk.put("a")) for _ in range(2)]
    await eventually(lambda: desk.peer.ways == ["line"] * 2)
    await desk.server.stop(None)
    for put in puts:
        with pytest.raises(OutcomeUnknown):
            await put
    assert desk.line.taken(0) is None


async def test_what_the_orchestrator_did_before_it_noticed_is_not_cut_off_by_half(desk):
    """Whoever hangs up leaves nothing running at the other end."""
    await desk.opened()
    desk.peer.gates["a"] = asyncio.Event()
    put = asyncio.create_task(desk.put("a"))
    await eventually(lambda: desk.peer.ways == ["line"])
    await desk.line.stop()
    with pytest.raises(OutcomeUnknown):
        await put
    await eventually(lambda: not desk.peer.streams[0]._under_way)


async def test_a_draining_orchestrator_answers_what_it_has_and_gets_no_more(desk):
    await desk.opened()
    gate = desk.peer.gates["a"] = asyncio.Event()
    put = asyncio.create_task(desk.put("a"))
    await eventually(lambda: desk.peer.ways == ["line"])
    line = desk.line._line
    desk.peer.streams[0].say_drain()
    await eventually(lambda: not line.is_open)
    assert await desk.put("b") == "b"
    assert desk.peer.ways == ["line", "call"]
    gate.set()
    assert await put == "a"
    await eventually(lambda: desk.peer.streams[0]._read_all)


async def test_a_line_that_keeps_a_put_waiting_is_left(desk, monkeypatch):
    monkeypatch.setattr(put_line, "DOUBT_SECONDS", 0.05)
    await desk.opened()
    gate = desk.peer.gates["a"] = asyncio.Event()
    put = asyncio.create_task(desk.put("a"))
    await eventually(lambda: desk.line.taken(0) is None)
    gate.set()
    assert await put == "a"


async def test_a_put_without_an_answer_is_given_up(desk, monkeypatch):
    monkeypatch.setattr(put_line, "PUT_SECONDS", 0.05)
    await desk.opened()
    desk.peer.gates["a"] = asyncio.Event()
    with pytest.raises(OutcomeUnknown):
        await desk.put("a")


async def test_a_put_that_is_cut_at_the_other_end_is_answered(desk, monkeypatch):
    monkeypatch.setattr(servicer_puts, "MOST_SECONDS", 0.05)
    await desk.opened()
    desk.peer.gates["a"] = asyncio.Event()
    with pytest.raises(OutcomeUnknown):
        await desk.put("a")
    assert desk.line._line.is_open, "it is of this put only"
    assert await desk.put("b") == "b"


async def test_a_line_is_renewed_by_age(desk, monkeypatch):
    monkeypatch.setattr(put_line, "LINE_SECONDS", 0.05)
    await desk.opened()
    await eventually(lambda: desk.line.taken(0) is None)
    monkeypatch.setattr(put_line, "LINE_SECONDS", 60)
    await eventually(lambda: desk.line.taken(0) is not None)
    assert await desk.put("a") == "a"
    assert desk.peer.ways == ["line"]
    await eventually(lambda: desk.peer.streams[0]._read_all)


async def test_what_is_large_goes_by_itself(desk):
    await desk.opened()
    await desk.put("large", put_line.MOST_BYTES + 1)
    await desk.put("small")
    assert desk.peer.ways == ["call", "line"]


class BrokenCall:
    """A call that ends for its reader while a write is still under way, which fails then."""

    def __init__(self) -> None:
        self.ended, self.failed = asyncio.Event(), asyncio.Event()

    async def read(self):
        await self.ended.wait()
        return grpc.aio.EOF

    async def write(self, message):
        await self.failed.wait()
        raise OutcomeUnknown("unknown")


async def test_a_put_whose_write_fails_after_the_line_ended_leaves_no_error_behind():
    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    call = BrokenCall()
    line = put_line._Line(call, Tasks())
    put = asyncio.create_task(line.put(pb.PutJobsRequest()))
    await asyncio.sleep(0)  # it writes now
    call.ended.set()
    await line.listen()
    call.failed.set()
    await asyncio.wait({put})
    assert isinstance(put.exception(), OutcomeUnknown)
    del put  # and with it the last that knows of the answer
    gc.collect()
    assert not logged
