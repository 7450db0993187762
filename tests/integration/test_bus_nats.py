"""The NATS adapter of the bus does what the bus promises, also while NATS misbehaves."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from localmesh.ports import LOOPBACK, PortPool
from localmesh.processes import Command
from localmesh.servers import Nats
from localmesh.servers.server import http_get

from services.mesh.bus import Message, Subjects
from services.mesh.bus.nats import PENDING_MESSAGES, NatsBus
from services.mesh.errors import DependencyUnavailable, PayloadTooLarge
from services.mesh.runtime import Readiness
from services.mesh.telemetry.metrics import Metrics
from services.mesh.testing.conformance.bus import BusConformance, Collected
from services.mesh.testing.servers import OwnServer
from services.mesh.testing.waiting import eventually

CONNECT_SECONDS = 10.0


@pytest.fixture
def subjects(unique_prefix: str) -> Subjects:
    return Subjects(unique_prefix)


async def started(url: str, *, echo: bool = True) -> NatsBus:
    bus = NatsBus(url, echo=echo)
    await bus.start()
    await bus.wait_connected(CONNECT_SECONDS)
    return bus


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    bus = await started(nats_url)
    yield bus
    await bus.stop()


@pytest.fixture
async def peer(nats_url: str) -> AsyncIterator[NatsBus]:
    bus = await started(nats_url)
    yield bus
    await bus.stop()


class TestNatsBus(BusConformance):
    async def test_a_message_over_the_limit_is_refused(
        self, bus: NatsBus, subjects: Subjects
    ) -> None:
        with pytest.raises(PayloadTooLarge):
            await bus.publish(subjects.due("a"), b"x" * (2 * 1024 * 1024))

    async def test_a_malformed_subject_is_a_mistake_of_the_caller(self, bus: NatsBus) -> None:
        with pytest.raises(ValueError, match="no subject"):
            await bus.publish("a b", b"")

    async def test_who_goes_away_while_subscribing_leaves_no_subscription(
        self, bus: NatsBus, subjects: Subjects
    ) -> None:
        nobody, somebody = Collected(), Collected()
        subscribing = asyncio.create_task(bus.subscribe(subjects.all_due, nobody))
        await asyncio.sleep(0)  # it has begun
        subscribing.cancel()
        await asyncio.wait({subscribing})
        assert subscribing.cancelled()
        await bus.subscribe(subjects.all_due, somebody)
        await bus.publish(subjects.due("a"), b"now")
        await somebody.next()
        assert nobody.count == 0

    async def test_what_was_published_before_stopping_arrives(
        self, bus: NatsBus, nats_url: str, subjects: Subjects
    ) -> None:
        due = Collected()
        await bus.subscribe(subjects.all_due, due)
        leaving = await started(nats_url)
        await leaving.publish(subjects.due("a"), b"last words")
        await leaving.stop()
        assert (await due.next()).payload == b"last words"

    async def test_a_bus_without_echo_hears_others_only(
        self, peer: NatsBus, nats_url: str, subjects: Subjects
    ) -> None:
        bus = await started(nats_url, echo=False)
        due = Collected()
        await bus.subscribe(subjects.all_due, due)
        await bus.publish(subjects.due("a"), b"its own")
        await peer.publish(subjects.due("a"), b"another's")
        assert (await due.next()).payload == b"another's"
        await bus.stop()

    async def test_a_large_burst_is_sent_without_loss(
        self, bus: NatsBus, peer: NatsBus, subjects: Subjects
    ) -> None:
        received = 0

        def count(message: Message) -> None:
            nonlocal received
            received += len(message.payload)

        await bus.subscribe(subjects.all_hints, count)
        for _ in range(100):
            await peer.publish(subjects.hint("s0"), b"x" * 500_000)
        await eventually(lambda: received == 100 * 500_000)

    async def test_a_burst_of_small_messages_does_not_overrun_a_quick_callback(
        self, bus: NatsBus, peer: NatsBus, subjects: Subjects
    ) -> None:
        received = 0

        def count(message: Message) -> None:
            nonlocal received
            received += 1

        await bus.subscribe(subjects.all_hints, count)
        for _ in range(30_000):
            await peer.publish(subjects.hint("s0"), b"")
        await eventually(lambda: received == 30_000)


# --- a server of our own, to hurt ---


@pytest.fixture
def ports() -> Iterator[PortPool]:
    with PortPool() as pool:
        yield pool


@pytest.fixture
def nats(tmp_path: Path, ports: PortPool) -> Iterator[OwnServer]:
    """A NATS that this test may hurt."""
    server = Nats("nats", tmp_path / "nats", port=ports.take(), monitor_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    yield own
    own.stop()


async def test_publishing_raises_while_the_broker_is_gone_and_works_when_it_is_back(
    nats: OwnServer, subjects: Subjects
) -> None:
    readiness = Readiness()
    bus = NatsBus(nats.server.url, dependency=readiness.require("nats"))
    await bus.start()
    await bus.wait_connected(CONNECT_SECONDS)
    assert readiness.ready
    due = Collected()
    await bus.subscribe(subjects.all_due, due)
    for round_ in range(3):
        nats.kill()
        await eventually(lambda: not readiness.ready)
        assert not bus.connected
        with pytest.raises(DependencyUnavailable) as raised:
            await bus.publish(subjects.due("a"), b"lost")
        assert raised.value.metadata == {"dependency": "nats"}
        nats.start()
        await readiness.wait_ready(CONNECT_SECONDS)
        await bus.publish(subjects.due("a"), b"after %d" % round_)
        # Nothing of the time without a connection is delivered late.
        assert (await due.next()).payload == b"after %d" % round_
    await bus.stop()


async def test_a_bus_that_cannot_publish_does_not_say_that_it_is_connected(
    nats: OwnServer, subjects: Subjects
) -> None:
    bus = await started(nats.server.url)

    async def publish_for_ever() -> None:
        while True:
            await bus.publish(subjects.due("a"), b"")
            await asyncio.sleep(0)

    nats.kill()
    with pytest.raises(DependencyUnavailable):
        await publish_for_ever()
    # Whoever asks before each publish would try again and again, as fast as it can.
    assert not bus.connected
    await bus.stop()


async def test_the_inbox_keeps_its_address_over_a_reconnect(
    nats: OwnServer, subjects: Subjects
) -> None:
    bus = await started(nats.server.url)
    answers: asyncio.Queue[str] = asyncio.Queue()
    inbox = await bus.open_inbox(lambda token, _: answers.put_nowait(token))
    address = inbox.address("a")
    nats.kill()
    await eventually(lambda: not bus.connected)
    nats.start()
    await bus.wait_connected(CONNECT_SECONDS)
    await bus.publish(address, b"")
    async with asyncio.timeout(5):
        assert await answers.get() == "a"
    await bus.stop()


async def test_a_frozen_broker_is_noticed(nats: OwnServer, subjects: Subjects) -> None:
    readiness = Readiness()
    bus = NatsBus(nats.server.url, dependency=readiness.require("nats"))
    await bus.start()
    await bus.wait_connected(CONNECT_SECONDS)
    nats.freeze()
    await eventually(lambda: not readiness.ready)
    assert not bus.connected
    nats.thaw()
    await readiness.wait_ready(CONNECT_SECONDS)
    await bus.stop()


async def test_a_broker_that_takes_nothing_makes_publishing_raise(
    nats: OwnServer, subjects: Subjects
) -> None:
    bus = await started(nats.server.url)
    nats.freeze()
    taken = 0

    async def flood() -> None:
        nonlocal taken
        while taken < 512 * 1024 * 1024:
            await bus.publish(subjects.hint("s0"), b"x" * 500_000)
            taken += 500_000

    with pytest.raises(DependencyUnavailable):
        await flood()
    assert taken < 64 * 1024 * 1024, "memory must stay bounded"
    nats.thaw()
    await bus.stop()


async def test_a_bus_may_start_before_its_broker(
    tmp_path: Path, ports: PortPool, subjects: Subjects
) -> None:
    server = Nats("nats", tmp_path / "nats", port=ports.take(), monitor_port=ports.take())
    own = OwnServer(server, tmp_path)
    bus = NatsBus(server.url)
    await bus.start()
    due = Collected()
    await bus.subscribe(subjects.all_due, due)
    with pytest.raises(DependencyUnavailable):
        await bus.publish(subjects.due("a"), b"early")
    own.start()
    await bus.wait_connected(CONNECT_SECONDS)
    await bus.publish(subjects.due("a"), b"late")
    assert (await due.next()).payload == b"late"
    await bus.stop()
    own.stop()


async def test_stopping_while_the_broker_is_away_does_not_hang(ports: PortPool) -> None:
    bus = NatsBus(f"nats://{LOOPBACK}:{ports.take()}")
    await bus.stop()
    await bus.start()
    async with asyncio.timeout(5):
        await bus.stop()
        await bus.stop()


async def test_a_second_server_is_used_when_the_first_is_gone(
    nats: OwnServer, ports: PortPool
) -> None:
    bus = await started(f"nats://{LOOPBACK}:{ports.take()}, {nats.server.url}")
    assert bus.connected
    await bus.stop()


async def test_messages_beyond_the_limit_of_a_slow_callback_are_dropped_and_counted(
    nats: OwnServer, subjects: Subjects
) -> None:
    metrics = Metrics()
    bus = NatsBus(nats.server.url, metrics=metrics)
    await bus.start()
    await bus.wait_connected(CONNECT_SECONDS)
    release = asyncio.Event()
    seen = 0

    async def slow(message: Message) -> None:
        nonlocal seen
        await release.wait()
        seen += 1

    await bus.subscribe(subjects.all_due, slow)
    for _ in range(PENDING_MESSAGES + 500):
        await bus.publish(subjects.due("a"), b"")
    await eventually(lambda: (metrics.value("jobmesh_bus_dropped_total") or 0) > 0)
    release.set()
    await eventually(
        lambda: seen + (metrics.value("jobmesh_bus_dropped_total") or 0) == PENDING_MESSAGES + 500
    )
    await bus.stop()


# --- permissions ---


class GuardedNats(Nats):
    """Lets the user `worker` publish grabs and nothing else."""

    def command(self) -> Command:
        plain = super().command()
        config = self.data / "nats.conf"
        config.write_text(
            "authorization { users: [ { user: worker, password: secret, permissions: {"
            ' publish: ["jm.grab.>"], subscribe: ["_INBOX.>"] } } ] }'
        )
        return replace(plain, argv=[*plain.argv, "-c", str(config)])


@pytest.fixture
def guarded(tmp_path: Path, ports: PortPool) -> Iterator[OwnServer]:
    server = GuardedNats("nats", tmp_path / "nats", port=ports.take(), monitor_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    yield own
    own.stop()


def _as(user: str, own: OwnServer) -> str:
    return own.server.url.replace("://", f"://{user}@")


async def test_a_refused_login_is_not_ready_and_is_tried_again(guarded: OwnServer) -> None:
    readiness = Readiness()
    metrics = Metrics()
    bus = NatsBus(
        _as("worker:wrong", guarded), dependency=readiness.require("nats"), metrics=metrics
    )
    await bus.start()
    await eventually(lambda: "uthorization" in readiness.missing()["nats"])
    assert not bus.connected
    await bus.stop()


async def test_a_refused_subject_is_not_silent(guarded: OwnServer) -> None:
    readiness = Readiness()
    bus = NatsBus(_as("worker:secret", guarded), dependency=readiness.require("nats"))
    await bus.start()
    await readiness.wait_ready(CONNECT_SECONDS)
    await bus.publish("jm.hint.s0", b"not mine to say")
    await eventually(lambda: not readiness.ready)
    assert "ermissions" in readiness.missing()["nats"]
    await bus.stop()


# --- a process that was frozen


class ImpatientNats(Nats):
    """Gives up clients that miss a pong or two within a second."""

    def prepare(self) -> None:
        super().prepare()
        (self.data / "nats.conf").write_text('ping_interval: "250ms"\nping_max: 1\n')


#: Publishes for ever; says a line for each message that was taken.
SPEAKER = """
import asyncio, sys
from services.mesh.bus.nats import NatsBus
from services.mesh.errors import MeshError

async def speak():
    bus = NatsBus(sys.argv[1])
    await bus.start()
    while True:
        try:
            await bus.publish("a.b", b"x" * 100)
            print("sent", flush=True)
        except MeshError:
            pass
        await asyncio.sleep(0.02)

asyncio.run(speak())
"""


async def test_a_process_that_was_frozen_speaks_again(tmp_path: Path, ports: PortPool) -> None:
    server = ImpatientNats("nats", tmp_path / "nats", port=ports.take(), monitor_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    speaker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SPEAKER, server.url, stdout=asyncio.subprocess.PIPE
    )
    assert speaker.stdout is not None
    try:
        await asyncio.wait_for(speaker.stdout.readline(), CONNECT_SECONDS)
        assert await _clients(server) == 1
        speaker.send_signal(signal.SIGSTOP)
        await eventually(lambda: _has_none(server))  # the server has given it up
        speaker.send_signal(signal.SIGCONT)
        await eventually(lambda: _has_some(server))
    finally:
        speaker.kill()
        await speaker.wait()
        own.stop()


async def _has_none(server: Nats) -> bool:
    return await _clients(server) == 0


async def _has_some(server: Nats) -> bool:
    return await _clients(server) == 1


async def _clients(server: Nats) -> int:
    """How many connections the server has."""
    _, body = await asyncio.to_thread(http_get, server.monitor_port, "/varz")
    return int(json.loads(body)["connections"])
