"""What lies between the processes: slow, lossy, cut at times; and etcd with leases that expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

from services.mesh.bus.memory import MemoryBroker, MemoryBus
from services.mesh.bus.port import Message
from services.mesh.errors import DependencyUnavailable, OutcomeUnknown, ShardUnavailable
from services.mesh.lease.keys import Keys
from services.mesh.lease.memory import MemoryLocks, MemoryRegistry, MemoryStore
from services.mesh.lease.port import (
    Entry,
    Lease,
    LeaseLost,
    LeaseState,
    LockOwner,
    LockResult,
    WatchEvent,
)
from tests.simulation.loop import Host
from tests.simulation.shard import ModelShard

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
#: What changes rows: when its answer is lost, nobody knows what became of it.
WRITES = frozenset(
    {"put_jobs", "claim", "report", "sweep", "rescue", "cancel", "expire_overdue"}
    | {"fire_due_schedules"}
)


def now() -> float:
    return asyncio.get_running_loop().time()


class LoopClock:
    """Time as the loop counts it."""

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=now())

    def now_us(self) -> int:
        return round(self.now().timestamp() * 1_000_000)

    def monotonic(self) -> float:
        return now()


@dataclass(slots=True)
class Weather:
    """How likely what is, per call or message."""

    lost_before: float = 0.0
    lost_after: float = 0.0
    message_lost: float = 0.0
    message_twice: float = 0.0
    slowest: float = 0.02


class Network:
    """Decides by lot what becomes of calls and messages."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.weather = Weather()
        self._cuts: dict[tuple[str, str], float] = {}

    def cut(self, one: str, other: str, until: float) -> None:
        """Nothing passes between these two until then."""
        self._cuts[one, other] = self._cuts[other, one] = until

    def heal(self) -> None:
        self._cuts.clear()
        self.weather = Weather()

    def is_cut(self, one: str, other: str) -> bool:
        return self._cuts.get((one, other), 0.0) > now()

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    async def hop(self) -> None:
        """The way there, or back."""
        await asyncio.sleep(self._random.uniform(0.0005, self.weather.slowest))

    async def call(
        self, one: str, other: str, work: Callable[[], Any], lost: Callable[[], Exception]
    ) -> Any:
        """Have something done elsewhere; `lost` if the question or the answer got lost."""
        await self.hop()
        if self.is_cut(one, other) or self.chance(self.weather.lost_before):
            raise lost()
        answer = work()
        if asyncio.iscoroutine(answer):
            answer = await answer
        await self.hop()
        if self.is_cut(one, other) or self.chance(self.weather.lost_after):
            raise lost()
        return answer


# --- shards


class ShardClient:
    """A shard as one process sees it."""

    def __init__(self, host: str, model: ModelShard, network: Network) -> None:
        self._host, self._model, self._network = host, model, network
        self.name = model.name
        self.answers = 0

    def __getattr__(self, method: str) -> Any:
        def lost() -> Exception:
            kind = OutcomeUnknown if method in WRITES else ShardUnavailable
            return kind(self.name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            def work() -> Any:
                return getattr(self._model, method)(*args, **kwargs)

            answer = await self._network.call(self._host, self.name, work, lost)
            self.answers += 1
            return answer

        return call


# --- the broker


class Broker(MemoryBroker):
    """Loses, repeats and delays messages."""

    def __init__(self, network: Network, random: Random) -> None:
        super().__init__()
        self._network, self._random = network, random

    def route(self, message: Message) -> None:
        weather = self._network.weather
        copies = 1 + self._network.chance(weather.message_twice)
        for _ in range(copies):
            if not self._network.chance(weather.message_lost):
                delay = self._random.uniform(0.0002, weather.slowest)
                loop = asyncio.get_running_loop()
                loop.call_later(delay, super().route, message, context=Context())


class Bus(MemoryBus):
    """One process's end of the broker."""

    def __init__(self, host: Host, broker: Broker, network: Network) -> None:
        super().__init__(broker)
        self._host, self._network = host, network

    @property
    def connected(self) -> bool:
        return not self._network.is_cut(self._host.name, "nats")

    async def publish(self, subject: str, payload: bytes, **options: Any) -> None:
        if not self.connected:
            raise DependencyUnavailable("nats", "cut off")
        await super().publish(subject, payload, **options)

    def vanish(self) -> None:
        """The process was killed: the broker notices, and sends it nothing more."""
        for subscription in self._subscriptions:
            if subscription in self.broker.subscriptions:
                self.broker.subscriptions.remove(subscription)


# --- etcd


class Etcd(MemoryStore):
    """Leases end when nobody renewed them in time."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = count(1)
        self._ends: dict[int, float] = {}

    def grant_for(self, seconds: float) -> int:
        lease_id = next(self._ids)
        self.leases[lease_id] = None  # type: ignore[assignment]
        self.renew(lease_id, seconds)
        return lease_id

    def renew(self, lease_id: int, seconds: float) -> bool:
        if lease_id not in self.leases:
            return False
        self._ends[lease_id] = now() + seconds
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._look, lease_id, context=Context())
        return True

    def _look(self, lease_id: int) -> None:
        if lease_id in self.leases and now() >= self._ends[lease_id] - 1e-9:
            self.revoke(lease_id)


class SimLease(Lease):
    """A lease as its holder sees it: trusted for a while after each renewal."""

    TTL, MARGIN = 2.0, 0.5

    def __init__(self, host: str, etcd: Etcd, network: Network, lease_id: int, sent: float) -> None:
        self._host, self._etcd, self._network = host, etcd, network
        self._lease_id = lease_id
        self._state = LeaseState.HELD
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[LeaseState], None]] = []
        self.trusted_until = sent + self.TTL - self.MARGIN
        self._task = asyncio.create_task(self._renew(), name="lease")

    @classmethod
    async def grant(cls, host: str, etcd: Etcd, network: Network) -> SimLease:
        sent = now()
        lease_id = await network.call(host, "etcd", lambda: etcd.grant_for(cls.TTL), _no_etcd)
        return cls(host, etcd, network, lease_id, sent)

    @property
    def lease_id(self) -> int:
        return self._lease_id

    @property
    def state(self) -> LeaseState:
        if self._state is LeaseState.HELD and now() >= self.trusted_until:
            return LeaseState.DOUBTFUL
        return self._state

    @property
    def alive(self) -> bool:
        return self.state is LeaseState.HELD

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    def on_change(self, callback: Callable[[LeaseState], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        if self._state is LeaseState.CLOSED:
            return
        self._enter(LeaseState.CLOSED)
        self._task.cancel()
        if not self._network.is_cut(self._host, "etcd"):
            self._etcd.revoke(self.lease_id)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.TTL / 3)
            sent = now()
            try:
                known = await self._network.call(
                    self._host, "etcd", lambda: self._etcd.renew(self.lease_id, self.TTL), _no_etcd
                )
            except DependencyUnavailable:
                self._tell_doubt()
                continue
            if not known:
                self._enter(LeaseState.LOST)
                self._lost.set()
                return
            self.trusted_until = sent + self.TTL - self.MARGIN
            self._enter(LeaseState.HELD)

    def _tell_doubt(self) -> None:
        if self.state is LeaseState.DOUBTFUL:
            for callback in self._callbacks:
                callback(LeaseState.DOUBTFUL)

    def _enter(self, state: LeaseState) -> None:
        self._state = state
        for callback in self._callbacks:
            callback(state)


def _no_etcd() -> Exception:
    return DependencyUnavailable("etcd", "lost")


class Registry(MemoryRegistry):
    """The registry over the network."""

    def __init__(self, host: str, etcd: Etcd, network: Network) -> None:
        super().__init__(etcd)
        self._host, self._network = host, network

    async def _call(self, work: Callable[[], Any]) -> Any:
        return await self._network.call(self._host, "etcd", work, _no_etcd)

    async def get(self, key: str) -> Entry | None:
        found: Entry | None = await self._call(lambda: MemoryRegistry.get(self, key))
        return found

    async def entries(self, prefix: str) -> list[Entry]:
        found: list[Entry] = await self._call(lambda: MemoryRegistry.entries(self, prefix))
        return found

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        revision: int = await self._call(lambda: MemoryRegistry.put(self, key, value, lease))
        return revision

    async def replace(
        self, key: str, value: bytes, revision: int, lease: Lease | None = None
    ) -> int | None:
        standing = self._store.entries.get(key)

        def work() -> int | None:
            if (standing.revision if standing else 0) != revision:
                return None
            return self._store.put(key, value, lease.lease_id if lease else 0).revision

        written: int | None = await self._call(work)
        return written

    async def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        """Behind a cut nothing is heard; afterwards, all of it."""
        async for event in self._store.follow(prefix):
            while self._network.is_cut(self._host, "etcd"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await self._network.hop()
            yield event


class Locks:
    """Job locks over the network."""

    def __init__(
        self,
        host: str,
        etcd: Etcd,
        network: Network,
        keys: Keys,
        lease: Lease | None = None,
        worker_id: str = "",
    ) -> None:
        self._host, self._network, self._lease = host, network, lease
        self._inner = MemoryLocks(etcd, keys, lease, worker_id)

    async def lock(self, fences: Mapping[bytes, int]) -> LockResult:
        assert self._lease is not None
        self._require_lease(self._lease)
        result: LockResult = await self._network.call(
            self._host, "etcd", lambda: self._inner.lock(fences), _no_etcd
        )
        self._require_lease(self._lease)
        return result

    def _require_lease(self, lease: Lease) -> None:
        if not lease.alive:
            raise LeaseLost(lease.lease_id, lease.state.value)

    async def unlock(self, fences: Mapping[bytes, int]) -> None:
        """Repeated until etcd has heard it, or there is nothing to give back any more."""
        while True:
            try:
                await self._network.call(
                    self._host, "etcd", lambda: self._inner.unlock(fences), _no_etcd
                )
                return
            except DependencyUnavailable:
                await asyncio.sleep(0.2)

    async def held(self, jobs: Iterable[bytes]) -> dict[bytes, LockOwner]:
        keys = list(jobs)
        found: dict[bytes, LockOwner] = await self._network.call(
            self._host, "etcd", lambda: self._inner.held(keys), _no_etcd
        )
        return found
