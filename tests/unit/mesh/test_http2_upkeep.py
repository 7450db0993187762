"""What only time shows of a connection is seen, and answered by one thing at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.rpc.http2 import frames as h2
from services.mesh.rpc.http2.connection import Connection
from services.mesh.rpc.http2.frames import FrameReader, frame
from services.mesh.rpc.http2.serving import Serving
from services.mesh.rpc.http2.upkeep import Patience, Upkeep
from tests.simulation.loop import VirtualLoop

NEVER = 1e12
MIB = 1024 * 1024
PATIENCE = Patience(greeting=10, idle=NEVER, age=NEVER, grace=60, silence=60, answer=20)
REQUEST = [
    *((":method", "POST"), (":scheme", "http"), (":path", "/jobs/Watch")),
    ("content-type", "application/grpc"),
]


@dataclass
class StandIn:
    """A connection with a call under way, and its parts, and what was done with it."""

    began: float = 0.0
    heard: float = 0.0
    has_greeted: bool = True
    pinged: float | None = None
    drained: float | None = None
    unsent_bytes: int = 0
    idle_talk: int = 7
    idle_since: float = 0.0
    share_of_age: float = 1.0
    streams: dict[int, object] = field(default_factory=lambda: {1: object()})
    done: list[str] = field(default_factory=list)

    @property
    def receiver(self) -> StandIn:
        return self

    @property
    def sender(self) -> StandIn:
        return self

    def abort(self) -> None:
        self.done.append("abort")

    def cut(self) -> None:
        self.done.append("cut")

    def drain(self) -> None:
        self.done.append("drain")

    def ping(self) -> None:
        self.done.append("ping")


def looked_at(connection: StandIn, now: float, patience: Patience = PATIENCE) -> list[str]:
    Upkeep(cast(Serving, None), patience).look_at(cast(Connection, connection), now)
    return connection.done


MOMENTS = st.floats(0, 100)


@given(
    st.builds(
        StandIn,
        began=MOMENTS,
        heard=MOMENTS,
        has_greeted=st.booleans(),
        pinged=st.none() | MOMENTS,
        drained=st.none() | MOMENTS,
        unsent_bytes=st.sampled_from([0, 100 * MIB]),
    ),
    st.floats(100, 300),
)
def test_a_look_does_one_thing_at_most_and_forgives_idle_talk(
    connection: StandIn, now: float
) -> None:
    assert len(looked_at(connection, now, Patience(age=200))) <= 1
    assert connection.idle_talk == 0


@pytest.mark.parametrize(("now", "done"), [(9.9, []), (10.1, ["abort"])])
def test_who_does_not_greet_in_time_is_cut_off(now: float, done: list[str]) -> None:
    assert looked_at(StandIn(has_greeted=False), now) == done


def test_who_says_other_things_than_a_greeting_is_cut_off_all_the_same() -> None:
    assert looked_at(StandIn(has_greeted=False, heard=10.9), 11) == ["abort"]


def test_who_has_greeted_has_all_the_time() -> None:
    assert looked_at(StandIn(heard=1000), 1000) == []


@pytest.mark.parametrize(("unsent", "done"), [(4 * MIB, []), (4 * MIB + 1, ["abort"])])
def test_who_takes_nothing_that_we_send_is_cut_off(unsent: int, done: list[str]) -> None:
    assert looked_at(StandIn(unsent_bytes=unsent), 1) == done
    drained = StandIn(unsent_bytes=unsent, drained=1)
    assert looked_at(drained, 1) == done


@pytest.mark.parametrize(("now", "done"), [(159, []), (161, ["ping"])])
def test_who_is_silent_is_asked_whether_it_is_there(now: float, done: list[str]) -> None:
    assert looked_at(StandIn(heard=100), now) == done


def test_who_was_asked_is_not_asked_again() -> None:
    assert looked_at(StandIn(heard=100, pinged=161), 180) == []


@pytest.mark.parametrize(("now", "done"), [(180.9, []), (181.1, ["abort"])])
@pytest.mark.parametrize("drained", [None, 165])
def test_who_does_not_answer_is_gone(now: float, done: list[str], drained: float | None) -> None:
    assert looked_at(StandIn(heard=100, pinged=161, drained=drained), now) == done


def test_who_says_something_else_is_still_there() -> None:
    assert looked_at(StandIn(heard=170, pinged=161), 189) == []


@pytest.mark.parametrize(("now", "done"), [(999, []), (1001, ["drain"])])
def test_who_is_too_old_is_drained(now: float, done: list[str]) -> None:
    assert looked_at(StandIn(heard=now), now, Patience(age=1000, silence=NEVER)) == done


@pytest.mark.parametrize(("now", "done"), [(159, []), (161, ["cut"])])
def test_who_is_drained_has_its_grace_and_is_cut_then(now: float, done: list[str]) -> None:
    old_and_silent = StandIn(heard=0, drained=100)
    assert looked_at(old_and_silent, now, Patience(age=50, grace=60, silence=60)) == done


@pytest.mark.parametrize(("now", "done"), [(219, ["cut"]), (221, ["abort"])])
def test_who_was_cut_and_does_not_go_is_cut_off(now: float, done: list[str]) -> None:
    assert looked_at(StandIn(heard=now, drained=100), now) == done


# --- with connections as they are, on a clock that is only counted


class Line(asyncio.Transport):
    """To a peer that answers every ping, and may have a call under way."""

    def __init__(self, patience: Patience) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        handler: Any = grpc.stream_unary_rpc_method_handler(self._serve)
        self.serving = Serving(self.loop, lambda _: handler, 10, 1000, 1000)
        self.upkeep = Upkeep(self.serving, patience)
        self._frames = FrameReader(h2.LARGEST_FRAME)
        self.pings = 0
        self.is_aborted = False
        self.connection = Connection(self.serving)
        self.connection.connection_made(self)
        self.connection.data_received(h2.PREFACE + h2.settings({}))
        self.upkeep.start()

    async def _serve(self, requests: Any, context: Any) -> None:
        await asyncio.Event().wait()

    def begin(self) -> None:
        self._say(frame(h2.HEADERS, h2.END_HEADERS, 1, Encoder().encode(REQUEST)))

    def end(self) -> None:
        self._say(h2.reset(1, h2.CANCEL))

    def _say(self, data: bytes) -> None:
        self.loop.call_soon(self.connection.data_received, data)

    def write(self, data: Any) -> None:
        for kind, flags, _, payload in self._frames.feed(bytes(data)):
            if kind == h2.PING and not flags & h2.ACK:
                self.pings += 1
                self._say(frame(h2.PING, h2.ACK, 0, payload))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.connection.connection_lost(None)

    @property
    def is_open(self) -> bool:
        return self.connection in self.serving.connections and not self.is_aborted


def virtually(work: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop(Random(0))
    loop.run(work)
    assert loop.problems == []


@pytest.mark.parametrize("silence", [NEVER, 60.0])
def test_who_has_no_call_is_drained_though_it_answers_pings(silence: float) -> None:
    async def main() -> None:
        line = Line(Patience(idle=300, age=NEVER, silence=silence))
        await asyncio.sleep(295)
        assert line.is_open
        await asyncio.sleep(15)
        assert not line.is_open

    virtually(main())


@pytest.mark.parametrize("silence", [NEVER, 60.0])
def test_who_has_a_call_is_idle_only_after_it(silence: float) -> None:
    async def main() -> None:
        line = Line(Patience(idle=300, age=NEVER, silence=silence))
        line.begin()
        await asyncio.sleep(1000)
        assert line.is_open
        assert len(line.connection.streams) == 1
        line.end()
        await asyncio.sleep(295)
        assert line.is_open
        await asyncio.sleep(15)
        assert not line.is_open

    virtually(main())


def test_those_that_began_at_once_are_not_drained_at_once() -> None:
    async def main() -> None:
        lines = [Line(Patience(idle=NEVER, age=1000, silence=NEVER)) for _ in range(50)]
        open_at = []
        for _ in range(3):
            await asyncio.sleep(890 if not open_at else 110)
            open_at.append(sum(line.is_open for line in lines))
        assert open_at[0] == 50
        assert 10 < open_at[1] < 40
        assert open_at[2] == 0
        for line in lines:
            line.upkeep.stop()

    virtually(main())


def test_who_answers_is_asked_for_as_long_as_it_stays() -> None:
    async def main() -> None:
        line = Line(PATIENCE)
        line.begin()
        await asyncio.sleep(1000)
        assert line.is_open
        assert 14 <= line.pings <= 16

    virtually(main())


def test_who_is_too_old_is_cut_when_its_grace_is_over() -> None:
    async def main() -> None:
        line = Line(Patience(idle=NEVER, age=100, grace=50))
        line.begin()
        await asyncio.sleep(139)
        assert line.connection.drained is not None
        assert line.is_open, "drained after 90 seconds, not cut before 140"
        await asyncio.sleep(30)
        assert not line.is_open

    virtually(main())


def test_every_connection_is_looked_at_until_the_upkeep_stops() -> None:
    async def main() -> None:
        mute = [StandIn(has_greeted=False) for _ in range(3)]
        serving = SimpleNamespace(loop=asyncio.get_running_loop(), connections=mute)
        upkeep = Upkeep(cast(Serving, serving), PATIENCE)
        upkeep.start()
        await asyncio.sleep(9)
        assert [each.done for each in mute] == [[], [], []]
        await asyncio.sleep(10)
        looks = [len(each.done) for each in mute]
        assert looks == [looks[0]] * 3
        assert looks[0] >= 3, "they are looked at again, as long as they are there"
        upkeep.stop()
        upkeep.stop()
        await asyncio.sleep(10)
        assert [len(each.done) for each in mute] == looks

    virtually(main())
