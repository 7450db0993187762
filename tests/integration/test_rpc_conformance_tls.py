"""What both servers promise over TLS, with and without certificates of clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.mesh.rpc.tls import TlsFiles
from tests.integration.http2_conformance_rig import (
    MIB,
    PATHS,
    PATIENCE,
    PIECE,
    WATCH,
    Calls,
    Flood,
    Inside,
    Served,
    code_of,
    everything,
    for_both,
    serving,
)
from tests.integration.test_chassis_tls import OPENSSL, issue

pytestmark = pytest.mark.skipif(not OPENSSL, reason="needs the program openssl")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    folder = tmp_path_factory.mktemp("tls")
    made = {name: issue(folder, name, "ours") for name in ("server", "client")}
    return {**made, "stranger": issue(folder, "stranger", "theirs")}


def only_server(files: dict[str, TlsFiles]) -> TlsFiles:
    """A server that asks nobody for a certificate."""
    return TlsFiles(files["server"].cert, files["server"].key)


def trust(files: dict[str, TlsFiles]) -> grpc.ChannelCredentials:
    """Of a client that has no certificate to show."""
    return grpc.ssl_channel_credentials(Path(str(files["server"].ca)).read_bytes())


@asynccontextmanager
async def secured(served: Served, credentials: grpc.ChannelCredentials) -> AsyncIterator[Calls]:
    options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.secure_channel(served.address, credentials, options) as channel:
        yield Calls(channel)


@for_both
async def test_each_kind_of_call_is_answered_over_tls(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with (
        serving(kind, tls=files["server"]) as s,
        secured(s, files["client"].channel_credentials()) as calls,
    ):
        for size in (0, 1, 16_384, 65_536, 300_000, 4 * MIB):
            for path, call in calls.each(b"s" * size).items():
                assert (await everything(call))[0] == b"s" * size, path


@for_both
async def test_a_server_that_asks_for_no_certificate_takes_clients_without(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with serving(kind, tls=only_server(files)) as s, secured(s, trust(files)) as calls:
        assert await calls.unary(b"x") == b"x"


@for_both
async def test_a_client_without_a_certificate_is_refused(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with serving(kind, tls=files["server"]) as s:
        async with secured(s, trust(files)) as calls:
            assert await code_of(calls.unary(b"x")) is grpc.StatusCode.UNAVAILABLE
        async with secured(s, files["client"].channel_credentials()) as calls:
            assert await calls.unary(b"x") == b"x"


@for_both
async def test_a_client_of_another_authority_is_refused(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    stranger = files["stranger"]
    known = TlsFiles(stranger.cert, stranger.key, files["server"].ca)
    credentials = known.channel_credentials()
    async with serving(kind, tls=files["server"]) as s, secured(s, credentials) as calls:
        assert await code_of(calls.unary(b"x")) is grpc.StatusCode.UNAVAILABLE


@for_both
async def test_plain_text_on_a_port_with_tls_is_refused(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with serving(kind, tls=files["server"]) as s:
        assert await code_of(s.calls.unary(b"x")) is grpc.StatusCode.UNAVAILABLE


@for_both
async def test_http2_is_agreed_on_and_old_tls_is_refused(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async def agreed(most: ssl.TLSVersion) -> Any:
        context = ssl.create_default_context(cafile=files["server"].ca)
        context.set_alpn_protocols(["http/1.1", "h2"])
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, most
        host, _, port = s.address.partition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        tls = writer.get_extra_info("ssl_object")
        writer.transport.abort()
        return tls.selected_alpn_protocol(), tls.version()

    async with serving(kind, tls=only_server(files)) as s:
        assert await agreed(ssl.TLSVersion.TLSv1_3) == ("h2", "TLSv1.3")
        assert await agreed(ssl.TLSVersion.TLSv1_2) == ("h2", "TLSv1.2")
        with (
            pytest.warns(DeprecationWarning, match="TLS"),
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            await agreed(ssl.TLSVersion.TLSv1_1)


@for_both
async def test_a_stop_over_tls_is_quick_and_ends_calls(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with serving(kind, tls=files["server"]) as s:
        inside = Inside()
        for path, behaviour in inside.behaviours().items():
            s.on(path, behaviour)
        async with secured(s, files["client"].channel_credentials()) as calls:
            begun = calls.each()
            await inside.until_entered(PATHS)
            async with asyncio.timeout(3.0):
                await s.stop(0.2)
            await inside.until_cancelled(PATHS)
            away = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            for path, call in begun.items():
                assert await code_of(call) in away, path


@for_both
async def test_idle_connections_with_tls_do_not_hold_a_stop(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with (
        serving(kind, tls=files["server"]) as s,
        secured(s, files["client"].channel_credentials()) as calls,
    ):
        assert await calls.unary(b"x") == b"x"
        async with asyncio.timeout(3.0):
            await s.stop(PATIENCE)


@for_both
async def test_a_write_over_tls_waits_for_who_does_not_read(
    kind: str, files: dict[str, TlsFiles]
) -> None:
    async with serving(kind, tls=files["server"]) as s:
        flood = Flood()
        s.on(WATCH, flood.behave)
        async with secured(s, files["client"].channel_credentials()) as calls:
            call = calls.watch(b"x")
            await flood.blocked
            assert await everything(call) == [PIECE] * flood.sent
