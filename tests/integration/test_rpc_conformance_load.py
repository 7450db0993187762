"""Many calls at once, peers that are slow to read, and gRPC's client for threads."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from services.mesh.runtime import Tally
from tests.integration.http2_conformance_rig import (
    MOST_PIECES,
    PATIENCE,
    PIECE,
    TALK,
    UNARY,
    UPLOAD,
    WATCH,
    Calls,
    Flood,
    by_blocking_client,
    code_of,
    everything,
    for_both,
    serving,
    until_blocked,
)


@for_both
async def test_500_calls_are_under_way_at_once_on_one_channel(kind: str) -> None:
    entered, let_go = Tally(), asyncio.Event()

    async def stay(request: bytes, context: Any) -> bytes:
        entered.add()
        await let_go.wait()
        return request

    async with serving(kind) as s:
        s.on(UNARY, stay)
        requests = [b"%d" % number * 100 for number in range(500)]
        calls = [s.calls.unary(request) for request in requests]
        await entered.reached(500)
        let_go.set()
        assert [await call for call in calls] == requests


@for_both
async def test_200_watches_on_one_channel_are_cancelled_at_once(kind: str) -> None:
    entered, left = Tally(), Tally()

    async def watch(request: bytes, context: Any) -> None:
        entered.add()
        try:
            while True:
                await context.write(request)
                await asyncio.sleep(0.01)
        finally:
            left.add()

    async with serving(kind) as s:
        s.on(WATCH, watch)
        watches = [s.calls.watch(b"%d" % number) for number in range(200)]
        for number, call in enumerate(watches):
            assert await call.read() == b"%d" % number
        for call in watches:
            call.cancel()
        await left.reached(200)
        assert entered.count == 200
        assert await s.calls.unary(b"x") == b"x"


@for_both
async def test_calls_of_all_sizes_share_a_channel_without_mixing(kind: str) -> None:
    async with serving(kind) as s:

        async def ask(number: int) -> None:
            message = b"%03d" % number * (1 + number * 700)
            assert await s.calls.unary(message) == message
            assert await everything(s.calls.talk(iter([message] * 2))) == [message] * 2

        await asyncio.gather(*map(ask, range(60)))


@for_both
async def test_a_write_waits_for_who_does_not_read_the_responses(kind: str) -> None:
    async with serving(kind) as s:
        flood = Flood()
        s.on(WATCH, flood.behave)
        call = s.calls.watch(b"x")
        await flood.blocked
        # Others of the same connection go on meanwhile.
        assert await s.calls.unary(b"x") == b"x"
        assert await everything(call) == [PIECE] * flood.sent


@for_both
async def test_a_caller_that_does_not_read_may_leave(kind: str) -> None:
    async with serving(kind) as s:
        flood = Flood()
        s.on(WATCH, flood.behave)
        call = s.calls.watch(b"x")
        await flood.blocked
        call.cancel()
        await flood.left.wait()
        assert await s.calls.unary(b"x") == b"x"


@pytest.mark.parametrize("path", [UPLOAD, TALK])
@for_both
async def test_a_write_waits_for_a_handler_that_does_not_read_the_requests(
    kind: str, path: str
) -> None:
    read = asyncio.Event()

    async def idle(requests: Any, context: Any) -> bytes:
        await read.wait()
        size = 0
        async for request in requests:
            size += len(request)
        if path == TALK:
            await context.write(b"%d" % size)
        return b"%d" % size

    async with serving(kind) as s:
        s.on(path, idle)
        call = s.calls.upload() if path == UPLOAD else s.calls.talk()
        sent: list[int] = []

        def write() -> Any:
            sent.append(1)
            return call.write(PIECE)

        waiting = await until_blocked(write, MOST_PIECES)
        # The connection is open to others meanwhile.
        assert await s.calls.unary(PIECE * 4) == PIECE * 4
        read.set()
        await waiting
        await call.done_writing()
        got = await call if path == UPLOAD else await call.read()
        assert int(got) == len(sent) * len(PIECE)


@for_both
async def test_uploads_that_nobody_reads_do_not_hold_up_the_others(kind: str) -> None:
    """Each holds what its own window allows, so that the connection's is always given back."""
    read = asyncio.Event()

    async def idle(requests: Any, context: Any) -> bytes:
        await read.wait()
        return b"%d" % sum([len(request) async for request in requests])

    async with serving(kind) as s:
        s.on(UPLOAD, idle)
        calls = [s.calls.upload(iter([PIECE] * 10)) for _ in range(30)]
        assert await s.calls.unary(PIECE * 4, timeout=PATIENCE) == PIECE * 4
        read.set()
        assert {await call for call in calls} == {b"%d" % (10 * len(PIECE))}


@for_both
async def test_a_client_of_threads_makes_each_kind_of_call(kind: str) -> None:
    def use(calls: Calls) -> None:
        for size in (0, 1, 100_000, 1_000_000):
            message = b"m" * size
            assert calls.unary(message, timeout=PATIENCE) == message
            assert list(calls.watch(message, timeout=PATIENCE)) == [message] * 3
            assert calls.upload(iter([message] * 3), timeout=PATIENCE) == message * 3
            assert list(calls.talk(iter([message] * 3), timeout=PATIENCE)) == [message] * 3

    async with serving(kind) as s:
        await by_blocking_client(s, use)


@for_both
async def test_a_client_of_threads_sees_refusals_and_metadata(kind: str) -> None:
    async def refuse(request: Any, context: Any) -> None:
        sent = dict(context.invocation_metadata())
        trailers = (("back-bin", sent["there-bin"]), ("back", sent["there"]))
        await context.abort(grpc.StatusCode.ABORTED, "nein, 漢字 %", trailers)

    def use(calls: Calls) -> None:
        metadata = (("there-bin", b"\0\xff"), ("there", "words"))
        error = calls.unary.future(b"x", metadata=metadata, timeout=PATIENCE).exception()
        assert isinstance(error, grpc.RpcError)
        assert isinstance(error, grpc.Call)
        assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "nein, 漢字 %")
        assert dict(map(tuple, error.trailing_metadata())) == {
            "back-bin": b"\0\xff",
            "back": "words",
        }

    async with serving(kind) as s:
        s.on(UNARY, refuse)
        await by_blocking_client(s, use)


@for_both
async def test_a_client_of_threads_may_cancel_a_watch(kind: str) -> None:
    left = asyncio.Event()

    async def watch(request: Any, context: Any) -> None:
        try:
            await context.write(b"here")
            await asyncio.Event().wait()
        finally:
            left.set()

    def use(calls: Calls) -> None:
        call = calls.watch(b"x", timeout=PATIENCE)
        assert next(call) == b"here"
        call.cancel()
        with pytest.raises(grpc.RpcError):
            next(call)

    async with serving(kind) as s:
        s.on(WATCH, watch)
        await by_blocking_client(s, use)
        await left.wait()


@for_both
async def test_calls_and_deadlines_at_once_end_each_as_it_should(kind: str) -> None:
    async def some(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            await asyncio.Event().wait()
        return request

    async with serving(kind) as s:
        s.on(UNARY, some)
        slow = [s.calls.unary(b"slow", timeout=0.2 + number / 1000) for number in range(100)]
        quick = [s.calls.unary(b"quick", timeout=PATIENCE) for _ in range(100)]
        assert {await call for call in quick} == {b"quick"}
        assert {await code_of(call) for call in slow} == {grpc.StatusCode.DEADLINE_EXCEEDED}
