"""The fault proxy, mode by mode, in front of a server that echoes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from services.mesh.testing.faults import FaultProxy, Link

SOON = 0.15
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def heard() -> list[bytes]:
    """What reached the server."""
    return []


@pytest.fixture
async def proxy(heard: list[bytes]) -> AsyncIterator[FaultProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while chunk := await reader.read(1000):
                heard.append(chunk)
                writer.write(chunk)
        writer.transport.abort()
        gone.set()

    gone = asyncio.Event()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with FaultProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()
    await asyncio.wait_for(gone.wait(), 5)
    await asyncio.sleep(0)


@pytest.fixture
async def pipe(proxy: FaultProxy) -> AsyncIterator[Pipe]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    yield reader, writer
    writer.transport.abort()
    await asyncio.sleep(0)


async def _silent(reader: asyncio.StreamReader) -> bool:
    try:
        await asyncio.wait_for(reader.read(1), SOON)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize(
    ("link", "arrives"),
    [(Link.HOLD, False), (Link.HOLD_REQUESTS, False), (Link.HOLD_REPLIES, True)],
)
async def test_what_a_black_hole_held_arrives_when_it_is_gone(
    proxy: FaultProxy, pipe: Pipe, heard: list[bytes], link: Link, arrives: bool
) -> None:
    reader, writer = pipe
    proxy.become(link)
    writer.write(b"again")
    assert await _silent(reader)
    assert (b"again" in heard) is arrives
    proxy.become(Link.PASS)
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"again"


async def test_a_cut_after_no_bytes_hides_an_answer_to_what_was_done(
    proxy: FaultProxy, pipe: Pipe, heard: list[bytes]
) -> None:
    reader, writer = pipe
    proxy.become(Link.CUT_AFTER, bytes_=0)
    writer.write(b"again")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(5), 5)
    assert heard[-1] == b"again"


async def test_a_cut_after_some_bytes_lets_those_pass(proxy: FaultProxy, pipe: Pipe) -> None:
    reader, writer = pipe
    proxy.become(Link.CUT_AFTER, bytes_=5)
    writer.write(b"again")
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"again"
    writer.write(b"!")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)


@pytest.mark.parametrize(
    ("link", "options"), [(Link.DELAY, {"seconds": 0.1}), (Link.THROTTLE, {"bytes_": 100})]
)
async def test_a_slow_link_passes_everything_late(
    proxy: FaultProxy, pipe: Pipe, link: Link, options: dict[str, float]
) -> None:
    reader, writer = pipe
    proxy.become(link, **options)  # type: ignore[arg-type]
    clock = asyncio.get_running_loop().time
    begin = clock()
    writer.write(b"x" * 50)
    assert await asyncio.wait_for(reader.readexactly(50), 5) == b"x" * 50
    assert clock() - begin >= 0.1


async def test_a_reset_link_refuses_old_and_new_connections(proxy: FaultProxy, pipe: Pipe) -> None:
    reader, _ = pipe
    proxy.become(Link.CUT)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    fresh, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(fresh.read(1), 5) == b""
    writer.transport.abort()
    await asyncio.sleep(0)


@pytest.mark.parametrize("first_to_go", [0, 1])
async def test_a_layer_is_lifted_alone(
    proxy: FaultProxy, pipe: Pipe, heard: list[bytes], first_to_go: int
) -> None:
    reader, writer = pipe
    layers = [proxy.lay(Link.HOLD), proxy.lay(Link.HOLD_REQUESTS)]
    writer.write(b"again")
    proxy.lift(layers.pop(first_to_go))
    assert await _silent(reader)
    assert heard == [b"hello"]
    proxy.lift(layers.pop())
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"again"


async def test_layers_act_together(proxy: FaultProxy, pipe: Pipe) -> None:
    reader, writer = pipe
    clock = asyncio.get_running_loop().time
    slow = [proxy.lay(Link.DELAY, seconds=0.05), proxy.lay(Link.DELAY, seconds=0.1)]
    begin = clock()
    writer.write(b"again")
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"again"
    assert clock() - begin >= 0.3
    assert [layer.met for layer in slow] == [2, 2]


async def test_bytes_are_counted_for_each_layer_by_itself(proxy: FaultProxy, pipe: Pipe) -> None:
    reader, writer = pipe
    proxy.lay(Link.CUT_AFTER, bytes_=8)
    writer.write(b"again")
    assert await asyncio.wait_for(reader.readexactly(5), 5) == b"again"
    later = proxy.lay(Link.CUT_AFTER, bytes_=2)
    writer.write(b"ab")
    assert await asyncio.wait_for(reader.readexactly(2), 5) == b"ab"
    proxy.lift(later)
    writer.write(b"cd")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(2), 5)
