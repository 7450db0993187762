"""How calls end that do not end by themselves: deadlines, callers that leave, servers that stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from services.mesh.testing.faults import FaultProxy, Link
from tests.integration.http2_conformance_rig import (
    PATHS,
    PATIENCE,
    TALK,
    UNARY,
    WATCH,
    Calls,
    Inside,
    Served,
    code_of,
    everything,
    failure,
    for_both,
    serving,
)

#: A server that goes away: gRPC's own says one or the other, by who hears of it first.
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
#: What has nothing to wait for is done in it, on a machine that is busy too.
QUICK = 3.0


async def begun(served: Served, **options: Any) -> tuple[Inside, dict[str, Any]]:
    """A call of each kind whose handler is in its middle."""
    inside = Inside()
    for path, behaviour in inside.behaviours().items():
        served.on(path, behaviour)
    calls = served.calls.each(**options)
    await inside.until_entered(PATHS)
    return inside, calls


@for_both
async def test_handlers_see_how_much_time_is_left(kind: str) -> None:
    seen: list[float | None] = []

    async def look(request: Any, context: Any) -> bytes:
        seen.append(context.time_remaining())
        return b""

    async with serving(kind) as s:
        s.on_all(look)
        for timeout in (None, 0.9, 50.0, 4000.0, 10_000_000.0):
            seen.clear()
            for call in s.calls.each(timeout=timeout).values():
                await everything(call)
            assert len(seen) == len(PATHS)
            for left in seen:
                if timeout is None:
                    assert left is None
                else:
                    # On the wire deadlines have few digits, and are rounded up.
                    assert left is not None
                    assert timeout - 0.9 < left < timeout * 1.02 + 0.1


@for_both
async def test_time_left_becomes_less(kind: str) -> None:
    async def look(request: Any, context: Any) -> None:
        for _ in range(3):
            await context.write(str(context.time_remaining()).encode())
            await asyncio.sleep(0.01)

    async with serving(kind) as s:
        s.on(WATCH, look)
        left = [float(text) for text in await everything(s.calls.watch(b"", timeout=10))]
        assert left == sorted(set(left), reverse=True)


@for_both
async def test_a_deadline_ends_the_call_for_both_sides(kind: str) -> None:
    async with serving(kind) as s:
        inside, calls = await begun(s, timeout=0.5)
        for path, call in calls.items():
            assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED, path
        await inside.until_cancelled(PATHS)


@for_both
async def test_a_deadline_ends_handlers_whose_caller_cannot_say_so(kind: str) -> None:
    async with serving(kind) as s, FaultProxy(s.port) as link:
        inside = Inside()
        for path, behaviour in inside.behaviours().items():
            s.on(path, behaviour)
        calls = s.open(link.address).each(timeout=1.0)
        await inside.until_entered(PATHS)
        link.become(Link.HANG)
        await inside.until_cancelled(PATHS)
        assert len(calls) == len(PATHS)


@for_both
async def test_a_deadline_reaches_a_handler_that_waits_for_requests(kind: str) -> None:
    async with serving(kind) as s:
        left = watched(s, lambda context: context.read())
        call = s.calls.talk(timeout=0.3)
        assert await code_of(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert isinstance(await left, asyncio.CancelledError)


def watched(served: Served, wait: Any) -> asyncio.Future[BaseException]:
    """What a handler of requests and responses was left by, while it waited."""
    left: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def behave(requests: Any, context: Any) -> None:
        try:
            while True:
                await wait(context)
        except BaseException as error:
            left.set_result(error)
            raise

    served.on(TALK, behave)
    return left


@for_both
async def test_handlers_are_cancelled_when_their_caller_leaves(kind: str) -> None:
    async with serving(kind) as s:
        inside, calls = await begun(s)
        for call in calls.values():
            assert call.cancel()
        await inside.until_cancelled(PATHS)
        for call in calls.values():
            assert await call.code() is grpc.StatusCode.CANCELLED


@for_both
async def test_handlers_are_cancelled_when_the_connection_goes(kind: str) -> None:
    async with serving(kind) as s:
        inside = Inside()
        for path, behaviour in inside.behaviours().items():
            s.on(path, behaviour)
        other = s.open()
        held = other.each()
        await inside.until_entered(PATHS)
        await other.channel.close()
        await inside.until_cancelled(PATHS)
        assert len(held) == len(PATHS)


@for_both
async def test_a_reader_and_a_writer_are_cancelled_when_their_caller_leaves(kind: str) -> None:
    async with serving(kind) as s:
        for wait in (
            lambda context: context.read(),
            lambda context: context.write(bytes(100_000)),
        ):
            left = watched(s, wait)
            call = s.calls.talk()
            await call.write(b"x")
            # Blocked, or soon to be: either way it must end.
            await s.calls.unary(b"x")
            call.cancel()
            # A write to gRPC's own server may find out first, and says so by another error.
            assert isinstance(await left, asyncio.CancelledError) or kind == "grpcio"


async def leave_by_cancelling(served: Served, calls: Calls) -> None:
    call = calls.watch(b"x")
    await call.read()
    call.cancel()


async def leave_and_hang_up(served: Served, calls: Calls) -> None:
    await leave_by_cancelling(served, calls)
    await served.calls.unary(b"x")
    await calls.channel.close()


async def leave_by_hanging_up(served: Served, calls: Calls) -> None:
    call = calls.watch(b"x")
    await call.read()
    await calls.channel.close()


async def leave_by_deadline(served: Served, calls: Calls) -> None:
    # The client says so too, before or after the server has looked at its own clock.
    await failure(calls.watch(b"x", timeout=0.3))


async def leave_by_stop(served: Served, calls: Calls) -> None:
    call = calls.watch(b"x")
    await call.read()
    await served.stop(None)


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_cancelling,
        leave_and_hang_up,
        leave_by_hanging_up,
        leave_by_deadline,
        leave_by_stop,
    ],
)
@for_both
async def test_a_handler_is_cancelled_once_and_may_clean_up_in_its_own_time(
    kind: str, leave: Callable[[Served, Calls], Awaitable[None]]
) -> None:
    left: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def stay(request: Any, context: Any) -> None:
        await context.write(b"here")
        try:
            await asyncio.Event().wait()
        finally:
            left.set_result(await clean_up())

    async with serving(kind) as s:
        s.on(WATCH, stay)
        await leave(s, s.open())
        assert await left == "cleaned up"


async def clean_up() -> str:
    """Takes long enough for the news of an ending to come a second time, by another way."""
    try:
        for _ in range(40):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        return "cancelled again"
    return "cleaned up"


@for_both
async def test_responses_that_were_sent_are_read_after_the_handler_ended(kind: str) -> None:
    ended = asyncio.Event()

    async def send(request: Any, context: Any) -> None:
        for number in range(100):
            await context.write(b"%d" % number)
        ended.set()

    async with serving(kind) as s:
        s.on(WATCH, send)
        call = s.calls.watch(b"x")
        await ended.wait()
        assert await everything(call) == [b"%d" % number for number in range(100)]


@for_both
async def test_a_call_after_a_cancelled_one_is_served(kind: str) -> None:
    async with serving(kind) as s:
        for _ in range(100):
            s.calls.unary(b"x").cancel()
            call = s.calls.talk()
            await call.write(b"x")
            call.cancel()
        assert await s.calls.unary(b"x") == b"x"


@for_both
async def test_a_stop_without_grace_ends_calls_of_each_kind(kind: str) -> None:
    async with serving(kind) as s:
        inside, calls = await begun(s)
        async with asyncio.timeout(QUICK):
            await s.stop(None)
        await inside.until_cancelled(PATHS)
        for path, call in calls.items():
            assert await code_of(call) in AWAY, path


@for_both
async def test_a_stop_with_grace_lets_calls_of_each_kind_end(kind: str) -> None:
    async with serving(kind) as s:
        inside, calls = await begun(s)
        stopping = asyncio.create_task(s.stop(PATIENCE))
        await asyncio.sleep(0)  # the port is closed before it waits for anything
        late = [await code_of(call) for call in s.open().each().values()]
        assert late == [grpc.StatusCode.UNAVAILABLE] * len(PATHS)
        assert not stopping.done()
        inside.let_go.set()
        async with asyncio.timeout(QUICK):
            await stopping
        assert inside.cancelled == []
        for path, call in calls.items():
            assert b"x" in await everything(call), path


@for_both
async def test_calls_that_outlast_the_grace_are_ended(kind: str) -> None:
    async with serving(kind) as s:
        inside, calls = await begun(s)
        async with asyncio.timeout(QUICK):
            await s.stop(0.2)
        await inside.until_cancelled(PATHS)
        for path, call in calls.items():
            assert await code_of(call) in AWAY, path


@for_both
async def test_a_stream_goes_on_both_ways_within_the_grace(kind: str) -> None:
    async with serving(kind) as s:
        call = s.calls.talk()
        await call.write(b"before")
        assert await call.read() == b"before"
        stopping = asyncio.create_task(s.stop(PATIENCE))
        for number in range(50):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        assert not stopping.done()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        async with asyncio.timeout(QUICK):
            await stopping


@for_both
async def test_connections_that_are_idle_do_not_hold_a_stop(kind: str) -> None:
    async with serving(kind) as s:
        for _ in range(5):
            assert await s.open().unary(b"x") == b"x"
        async with asyncio.timeout(QUICK):
            await s.stop(PATIENCE)


@for_both
async def test_a_stopped_server_is_unavailable(kind: str) -> None:
    async with serving(kind) as s:
        assert await s.calls.unary(b"x") == b"x"
        await s.stop(PATIENCE)
        for call in s.calls.each().values():
            error = await failure(call)
            assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("grace", [None, PATIENCE])
@for_both
async def test_clients_come_back_to_a_server_that_was_started_again(
    kind: str, grace: float | None
) -> None:
    async with serving(kind) as s:
        for _ in range(3):
            assert await s.calls.unary(b"x", wait_for_ready=True, timeout=PATIENCE) == b"x"
            await s.stop(grace)
            await s.start()
        assert await s.calls.unary(b"x", wait_for_ready=True, timeout=PATIENCE) == b"x"


@for_both
async def test_a_call_on_a_connection_that_drains_is_served_or_away(kind: str) -> None:
    """Whoever hears that its server is away may ask another; nothing may be done for it then."""
    served: list[bytes] = []

    async def answer(request: bytes, context: Any) -> bytes:
        served.append(request)
        return request

    async with serving(kind) as s:
        s.on(UNARY, answer)
        assert await s.calls.unary(b"first") == b"first"
        calls = {b"%d" % number: s.calls.unary(b"%d" % number) for number in range(300)}
        # gRPC's own server leaves what it did not hand over in time until the grace is over.
        stopping = asyncio.create_task(s.stop(1.0 if kind == "grpcio" else PATIENCE))
        ended = {request: await call.code() for request, call in calls.items()}
        await stopping
    for request, code in ended.items():
        assert code in (grpc.StatusCode.OK, *AWAY)
        assert (code is grpc.StatusCode.OK) == (request in served), request


@for_both
async def test_an_upload_under_way_is_taken_to_its_end_within_the_grace(kind: str) -> None:
    async with serving(kind) as s:
        call = s.calls.upload()
        await call.write(b"a" * 100_000)
        await s.calls.unary(b"x")
        stopping = asyncio.create_task(s.stop(PATIENCE))
        for _ in range(20):
            await call.write(b"a" * 100_000)
        await call.done_writing()
        assert len(await call) == 2_100_000
        async with asyncio.timeout(QUICK):
            await stopping
