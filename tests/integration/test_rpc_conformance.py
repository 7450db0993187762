"""What both servers promise of messages, statuses and metadata, told by grpc.aio's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from services.mesh.errors import InvalidField
from services.mesh.rpc.errors import from_rpc_error
from tests.integration.chassis_mesh import mesh
from tests.integration.http2_conformance_rig import (
    ECHOES,
    MIB,
    PATIENCE,
    TALK,
    TRAILERS,
    UNARY,
    UPLOAD,
    WATCH,
    Calls,
    by_blocking_client,
    code_of,
    everything,
    failure,
    for_both,
    noise,
    server_kind,
    serving,
)

# Around every size at which something is parted: frames, windows, and both at once.
SIZES = (0, 1, 16_378, 16_379, 16_380, 16_383, 16_384, 16_385, 65_535, 65_536, 300_000, 4 * MIB)
SAYINGS = (
    "",
    "plain words",
    "Grüße, 漢字, 🎉",
    "two\nlines\r\nand a\ttab\0",
    "100% of %41 and %zz and %",
    " spaces around ",
    '"quoted\\"~\x7f',
    "long " * 500,
)
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@for_both
async def test_each_kind_of_call_is_answered(kind: str) -> None:
    async with serving(kind) as s:
        calls = s.calls
        assert await calls.unary(b"one") == b"one"
        assert await everything(calls.watch(b"one")) == [b"one"] * 3
        assert await calls.upload(iter([b"one", b"two"])) == b"onetwo"
        assert await everything(calls.talk(iter([b"one", b"two"]))) == [b"one", b"two"]


@for_both
async def test_each_kind_of_call_ends_with_ok_and_without_words(kind: str) -> None:
    async with serving(kind) as s:
        for call in s.calls.each().values():
            await everything(call)
            assert await call.code() is grpc.StatusCode.OK
            assert not await call.details()
            assert not await call.trailing_metadata()


@for_both
async def test_responses_are_seen_before_the_next_request_is_sent(kind: str) -> None:
    async with serving(kind) as s:
        call = s.calls.talk()
        for number in range(100):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


@for_both
async def test_streams_without_messages_are_streams(kind: str) -> None:
    async def nothing(request: Any, context: Any) -> None:
        return None

    async with serving(kind) as s:
        s.on(WATCH, nothing)
        assert await everything(s.calls.watch(b"")) == []
        assert await s.calls.upload(iter([])) == b""
        assert await everything(s.calls.talk(iter([]))) == []


@for_both
async def test_messages_of_every_size_arrive_whole_in_both_directions(kind: str) -> None:
    async with serving(kind) as s:
        for size in SIZES:
            message = noise(size)
            assert await s.calls.unary(message) == message, size
        sent = [noise(size) for size in SIZES]
        assert await everything(s.calls.talk(iter(sent))) == sent


@for_both
async def test_many_small_messages_keep_their_order(kind: str) -> None:
    async with serving(kind) as s:
        sent = [b"%d" % number for number in range(2000)]
        assert await everything(s.calls.talk(iter(sent))) == sent
        assert await s.calls.upload(iter(sent)) == b"".join(sent)


@for_both
async def test_a_request_beyond_the_limit_is_refused_and_the_connection_stays(kind: str) -> None:
    limit = 300_000
    async with serving(kind, largest_message=limit) as s:
        for path, call in s.calls.each(bytes(limit + 1)).items():
            assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED, path
        for call in s.calls.each(bytes(limit)).values():
            assert (await everything(call))[0] == bytes(limit)


@for_both
async def test_a_response_beyond_the_limit_is_refused_and_the_connection_stays(kind: str) -> None:
    limit = 300_000
    async with serving(kind, largest_sent=limit) as s:
        for path, call in s.calls.each(bytes(limit + 1)).items():
            assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED, path
        for call in s.calls.each(bytes(limit)).values():
            assert (await everything(call))[0] == bytes(limit)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@for_both
async def test_compressed_requests_are_opened(kind: str, compression: grpc.Compression) -> None:
    async with serving(kind) as s:
        calls = s.open(compression=compression)
        for message in (b"", b"x", bytes(300_000), noise(100_000)):
            for path, call in calls.each(message).items():
                assert (await everything(call))[0] == message, path


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@for_both
async def test_the_limit_is_that_of_opened_messages(
    kind: str, compression: grpc.Compression
) -> None:
    limit = 300_000
    async with serving(kind, largest_message=limit) as s:
        calls = s.open(compression=compression)
        for path, call in calls.each(bytes(limit + 1)).items():
            assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED, path
        for call in calls.each(bytes(limit)).values():
            assert (await everything(call))[0] == bytes(limit)


@pytest.mark.parametrize("path", ["/conformance.Calls/Other", "/other.Calls/Unary", "/", "/x"])
@for_both
async def test_a_method_that_is_not_here_is_unimplemented_for_each_kind_of_call(
    kind: str, path: str
) -> None:
    async with serving(kind) as s:
        channel = s.calls.channel
        calls = (
            channel.unary_unary(path)(b"x"),
            channel.unary_stream(path)(b"x"),
            channel.stream_unary(path)(iter([b"x"])),
            channel.stream_stream(path)(iter([b"x"])),
        )
        # The client takes a status that overtakes its first request for an error of its own;
        # grpcio's server leaves that to chance.
        chance = {grpc.StatusCode.INTERNAL} if kind == "grpcio" else set()
        for call in calls:
            assert await code_of(call) in {grpc.StatusCode.UNIMPLEMENTED} | chance
        assert await s.calls.unary(b"x") == b"x"


@for_both
async def test_bytes_that_are_no_message_are_refused_as_bad_input(kind: str) -> None:
    async def ack(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            yield None

    async with mesh(kind=server_kind(kind)) as m:
        m.sample.on_stream = ack
        service = "/jobmesh.v1.EnqueueService/"
        for call in (
            m.bare.unary_unary(f"{service}GetJob")(b"\xff\xff"),
            m.bare.unary_stream(f"{service}WatchJobs")(b"\xff\xff"),
            m.bare.stream_stream(f"{service}EnqueueStream")(iter([b"\xff\xff"])),
        ):
            error = from_rpc_error(await failure(call))
            assert isinstance(error, InvalidField)
            assert "is not a valid" in error.message


@for_both
async def test_a_deserializer_that_fails_fails_its_call_alone(kind: str) -> None:
    def refuse(data: bytes) -> bytes:
        raise ValueError("no message")

    async with serving(kind) as s:
        handler = s.handlers[UNARY]
        s.handlers[UNARY] = handler._replace(request_deserializer=refuse)
        # gRPC has both codes for it, and its servers differ.
        codes = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
        assert await code_of(s.calls.unary(b"x")) in codes
        assert await everything(s.calls.watch(b"x")) == [b"x"] * 3


@pytest.mark.parametrize("text", SAYINGS)
@for_both
async def test_a_refusal_arrives_with_its_words_as_they_are(kind: str, text: str) -> None:
    async def refuse(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    async with serving(kind) as s:
        s.on_all(refuse)
        for path, call in s.calls.each().items():
            error = await failure(call)
            assert (error.code(), error.details()) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                text,
            ), path


@for_both
async def test_every_code_arrives_as_it_was_sent(kind: str) -> None:
    codes = {str(code.value[0]).encode(): code for code in CODES}

    async def refuse(request: bytes, context: Any) -> None:
        await context.abort(codes[request], "refused")

    async with serving(kind) as s:
        s.on(UNARY, refuse)
        for request, code in codes.items():
            assert await code_of(s.calls.unary(request)) is code


@for_both
async def test_responses_before_a_refusal_arrive_before_it(kind: str) -> None:
    async def refuse(request: Any, context: Any) -> None:
        for number in range(5):
            await context.write(b"%d" % number * 50_000)
        await context.abort(grpc.StatusCode.ABORTED, "enough", TRAILERS)

    async with serving(kind) as s:
        s.on(WATCH, refuse)
        s.on(TALK, refuse)
        for call in (s.calls.watch(b"x"), s.calls.talk(iter([b"x"]))):
            for number in range(5):
                assert await call.read() == b"%d" % number * 50_000
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            error = caught.value
            assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "enough")
            assert len(error.trailing_metadata()) == len(TRAILERS)


@for_both
async def test_a_handler_that_raises_fails_its_call_alone(kind: str) -> None:
    async def fail(request: Any, context: Any) -> None:
        raise ValueError("a defect")

    async with serving(kind) as s:
        s.on_all(fail)
        for path, call in s.calls.each().items():
            assert await code_of(call) is grpc.StatusCode.UNKNOWN, path
        s.on(UNARY, ECHOES[UNARY])
        assert await s.calls.unary(b"x") == b"x"


@for_both
async def test_a_handler_may_answer_before_it_has_read_its_requests(kind: str) -> None:
    async def answer(requests: Any, context: Any) -> bytes:
        return b"done"

    async def talk(requests: Any, context: Any) -> None:
        await context.write(b"done")

    def ask(calls: Calls) -> None:
        for _ in range(50):
            assert calls.upload(iter([b"x" * 1000] * 3), timeout=PATIENCE) == b"done"
            assert list(calls.talk(iter([b"x" * 1000] * 3), timeout=PATIENCE)) == [b"done"]

    async with serving(kind) as s:
        s.on(UPLOAD, answer)
        s.on(TALK, talk)
        # grpc.aio takes it for an error of its own when a call ends while it sends.
        await by_blocking_client(s, ask)


@for_both
async def test_a_refusal_before_any_request_was_read_is_what_the_client_sees(kind: str) -> None:
    async def refuse(requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")

    async with serving(kind) as s:
        s.on(UPLOAD, refuse)
        s.on(TALK, refuse)
        for _ in range(20):
            calls = (s.calls.upload(iter([b"x"])), s.calls.talk(iter([b"x"])), s.calls.talk())
            codes = await asyncio.gather(*map(code_of, calls))
            # grpc.aio's client trips over gRPC's own server, whose status overtakes the request.
            tripped = {grpc.StatusCode.INTERNAL} if kind == "grpcio" else set()
            assert set(codes) - tripped == {grpc.StatusCode.PERMISSION_DENIED}
