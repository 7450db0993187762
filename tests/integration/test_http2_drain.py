"""A listener that stops, and connections that are too old, leave no call unanswered."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.mesh.rpc.http2 import connection as http2_connection
from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2 import sending
from services.mesh.rpc.http2.upkeep import Patience, Upkeep
from services.mesh.rpc.tls import TlsFiles
from services.mesh.testing.waiting import eventually
from tests.integration.http2_desk import Served, served
from tests.integration.http2_peer import PATIENCE_SECONDS, Peer
from tests.integration.test_chassis_tls import OPENSSL, issue

OK = grpc.StatusCode.OK.value[0]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
NOTHING_YET = (h2.LARGEST_WINDOW, h2.NO_ERROR)


def later(s: Served, patience: Patience, seconds: float) -> None:
    """The upkeep looks at the only connection, so many seconds from now."""
    Upkeep(s.serving, patience).look_at(s.connection, s.serving.loop.time() + seconds)


async def ping_of(peer: Peer) -> bytes:
    return await peer.until(h2.PING)


async def test_calls_that_come_between_the_two_goodbyes_are_served() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"under way")
        await s.desk.begun.reached(1)
        stopping = asyncio.create_task(s.listener.stop(30))
        assert await peer.goaway() == NOTHING_YET
        mark = await ping_of(peer)
        peer.ask(3, "/t/Echo", b"between")
        assert (await peer.answer(3)).messages == [b"between"]
        peer.ask(5, "/t/Hold", b"between too")
        peer.send(h2.PING, h2.ACK, 0, mark)
        assert await peer.goaway() == (5, h2.NO_ERROR)
        peer.ask(7, "/t/Echo", b"after")
        assert (await peer.answer(7)).reset == h2.REFUSED_STREAM
        s.desk.release.set()
        assert (await peer.answer(1)).messages == [b"under way"]
        assert (await peer.answer(5)).messages == [b"between too"]
        await peer.over()
        await peer.close()
        await stopping
        await s.left_alone()


async def test_no_goodbye_names_a_later_stream_than_the_one_before() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"under way")
        await s.desk.begun.reached(1)
        s.connection.drain()
        assert await peer.goaway() == NOTHING_YET
        peer.send(h2.PING, h2.ACK, 0, await ping_of(peer))
        assert await peer.goaway() == (1, h2.NO_ERROR)
        peer.ask(3, "/t/Echo", b"after")
        assert (await peer.answer(3)).reset == h2.REFUSED_STREAM
        peer.send(h2.PUSH_PROMISE)
        assert await peer.goaway() == (1, h2.PROTOCOL_ERROR)
        s.desk.release.set()


async def test_a_peer_that_does_not_answer_the_ping_gets_its_second_goodbye_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_connection, "_DRAIN_SECONDS", 0.02)
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"under way")
        await s.desk.begun.reached(1)
        stopping = asyncio.create_task(s.listener.stop(30))
        assert await peer.goaway() == NOTHING_YET
        assert await peer.goaway() == (1, h2.NO_ERROR)
        s.desk.release.set()
        assert (await peer.answer(1)).messages == [b"under way"]
        await peer.over()
        await peer.close()
        await stopping


async def test_the_answer_to_an_earlier_ping_is_not_taken_for_the_last_word() -> None:
    async with served() as s:
        peer = await s.peer()
        s.connection.ping()
        early = await ping_of(peer)
        s.connection.drain()
        mark = await ping_of(peer)
        peer.send(h2.PING, h2.ACK, 0, early)
        peer.ask(1, "/t/Echo", b"on its way")
        peer.send(h2.PING, h2.ACK, 0, mark)
        assert (await peer.answer(1)).messages == [b"on its way"]


async def test_an_idle_connection_is_closed_at_once() -> None:
    async with served() as s:
        peer = await s.peer()
        stopping = asyncio.create_task(s.listener.stop(30))
        peer.send(h2.PING, h2.ACK, 0, await ping_of(peer))
        await peer.over()
        await peer.close()
        await stopping
        await s.left_alone()


async def test_who_has_not_said_what_it_wants_does_not_hold_up_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_connection, "_DRAIN_SECONDS", 0.02)
    monkeypatch.setattr(sending, "_LINGER_SECONDS", 0.02)
    async with served() as s:
        stranger = await s.stranger()
        stranger.raw(h2.PREFACE[:5])
        await eventually(lambda: bool(s.serving.connections), PATIENCE_SECONDS)
        await s.listener.stop(30)
        await s.left_alone()


@pytest.mark.parametrize("grace", [None, 0.05])
@pytest.mark.parametrize("path", ["/t/Hold", "/t/Chat", "/t/Join"])
async def test_calls_that_outlast_the_grace_are_told_so(path: str, grace: float | None) -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, path)
        peer.say(1, b"hello", end=path == "/t/Hold")
        await s.desk.begun.reached(1)
        await peer.settled()
        stopping = asyncio.create_task(s.listener.stop(grace))
        assert (await peer.answer(1)).status == UNAVAILABLE
        await peer.close()
        await stopping
        assert s.desk.cancelled.count == 1
        await s.left_alone()


async def test_a_stop_without_grace_says_which_calls_have_begun() -> None:
    # All others can be sent again, to somebody else, by clients that know nothing of them.
    async with served() as s:
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"under way")
        await s.desk.begun.reached(1)
        stopping = asyncio.create_task(s.listener.stop(None))
        peer.ask(3, "/t/Echo", b"on its way")
        assert await peer.goaway() == (1, h2.NO_ERROR)
        assert (await peer.answer(1)).status == UNAVAILABLE
        await peer.over()
        assert 3 not in peer.answers
        await peer.close()
        await stopping


async def test_a_call_that_has_said_nothing_is_told_of_the_stop_too() -> None:
    async with served() as s:
        peer = await s.peer()
        peer.open(1, "/t/Join")
        await s.desk.begun.reached(1)
        stopping = asyncio.create_task(s.listener.stop(None))
        assert (await peer.answer(1)).status == UNAVAILABLE
        await peer.close()
        await stopping


async def test_the_last_answer_arrives_however_late_its_reader_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "_LINGER_SECONDS", 0.01)
    async with served() as s:

        async def large(request: bytes, context: Any) -> bytes:
            await s.desk.release.wait()
            return bytes(16 * 2**20)  # more than the kernel takes

        s.desk.serve("/t/Large", large)
        peer = await s.peer(initial_window_size=h2.LARGEST_WINDOW)
        peer.grant(0, h2.LARGEST_WINDOW - h2.DEFAULT_WINDOW)
        peer.ask(1, "/t/Large", b"")
        await s.desk.begun.reached(1)
        s.connection.drain()
        peer.send(h2.PING, h2.ACK, 0, await ping_of(peer))
        assert await peer.goaway() == (1, h2.NO_ERROR)
        s.desk.release.set()
        await s.desk.ended.reached(1)
        # The peer reads only after we would have hung up on one that does not: a timer that is
        # started later fires later.
        late = asyncio.Event()
        s.serving.loop.call_later(0.1, late.set)
        await late.wait()
        assert (await peer.answer(1)).messages == [bytes(16 * 2**20)]


@pytest.fixture(params=["plain", "tls"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> TlsFiles | None:
    if request.param == "plain":
        return None
    if not OPENSSL:
        pytest.skip("needs the program openssl")
    made = issue(tmp_path, "server", "ours")
    return TlsFiles(made.cert, made.key)


async def slow_peer(s: Served, files: TlsFiles | None) -> Peer:
    """A peer behind a network that carries little at once."""
    loop = asyncio.get_running_loop()
    thin = socket.socket()
    thin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    thin.setblocking(False)
    await loop.sock_connect(thin, ("127.0.0.1", s.port))
    tls: dict[str, Any] = {}
    if files is not None:
        context = ssl.create_default_context(cafile=files.cert)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        tls = {"ssl": context, "server_hostname": "server"}
    peer = Peer(*await asyncio.open_connection(sock=thin, limit=4096, **tls))
    peer.raw(h2.PREFACE + h2.settings({h2.INITIAL_WINDOW_SIZE: h2.LARGEST_WINDOW}))
    peer.grant(0, h2.LARGEST_WINDOW - h2.DEFAULT_WINDOW)
    return peer


async def test_the_last_answer_arrives_however_slow_the_network_is(
    monkeypatch: pytest.MonkeyPatch, files: TlsFiles | None
) -> None:
    monkeypatch.setattr(sending, "_LINGER_SECONDS", 0.2)
    size = 300_000 if files is None else 800_000  # TLS takes in a quarter of a megabyte ahead
    async with served(tls=files) as s:
        peer = await slow_peer(s, files)
        peer.ask(1, "/t/Size", b"%d" % size)
        await eventually(lambda: s.desk.ended.count == 1, PATIENCE_SECONDS)
        await eventually(lambda: not s.connection.streams, PATIENCE_SECONDS)
        s.connection.drain()
        s.connection.hear_answer(http2_connection._LAST_WORD)
        while (await peer.next()) is not None and not peer.of(1).has_ended:
            await asyncio.sleep(0.02)
            peer.grant(1, 1000)  # it still speaks, as it makes room for more
        assert peer.of(1).messages == [bytes(size)]
        await peer.close()


# --- what only time shows


async def test_an_idle_connection_is_sent_away_and_a_used_one_is_not() -> None:
    async with served() as s:
        patience = Patience(idle=100.0, silence=1000.0)
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"")
        await s.desk.begun.reached(1)
        later(s, patience, 101.0)
        await peer.settled()
        assert s.connection.drained is None
        s.desk.release.set()
        await peer.answer(1)
        await peer.settled()
        later(s, patience, 101.0)
        assert await peer.goaway() == NOTHING_YET


async def test_an_old_connection_ends_its_calls_only_after_its_grace() -> None:
    async with served() as s:
        patience = Patience(age=100.0, grace=50.0, silence=1000.0, answer=1000.0)
        peer = await s.peer()
        peer.ask(1, "/t/Hold", b"")
        await s.desk.begun.reached(1)
        later(s, patience, 111.0)
        assert await peer.goaway() == NOTHING_YET
        assert s.connection.drained is not None
        s.connection.drained += 111.0
        later(s, patience, 160.0)
        await peer.settled()
        assert s.desk.running == 1
        later(s, patience, 162.0)
        assert (await peer.answer(1)).status == UNAVAILABLE
        await peer.over()
        await peer.close()
        await s.left_alone()


async def test_a_peer_that_fell_silent_is_asked_and_then_forgotten() -> None:
    async with served() as s:
        patience = Patience(silence=60.0, answer=20.0)
        peer = await s.peer()
        peer.open(1, "/t/Chat")
        await s.desk.begun.reached(1)
        later(s, patience, 59.0)
        await peer.settled()
        assert not [each for each in peer.seen if each[0] == h2.PING and not each[1] & h2.ACK]
        later(s, patience, 61.0)
        mark = await ping_of(peer)
        later(s, patience, 19.0)
        peer.send(h2.PING, h2.ACK, 0, mark)
        await peer.settled()
        later(s, patience, 61.0)  # it answered: it is asked again, not forgotten
        await ping_of(peer)
        assert s.desk.running == 1
        later(s, patience, 21.0)
        await s.left_alone()
        assert s.desk.cancelled.count == 1
