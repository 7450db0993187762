"""Membership: our key under our lease, the other schedulers' keys, and who keeps which shard.

Without etcd the last known division stays in force, and we always count ourselves in: a scheduler
that is cut off goes on with its duties, and the one that took them over does them as well. That is
wasteful and harmless, since every write is conditional; a shard that nobody keeps would be neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.keys import Keys
from services.mesh.lease.port import Lease, LeaseState, Registry
from services.mesh.runtime import Backoff, Dependency, Tasks
from services.scheduler.app.follow import Follower
from services.scheduler.domain.duties import duties_of, keeper_of

log = logging.getLogger(__name__)

BACKOFF = Backoff(first=0.2, ceiling=2.0)
#: What the keeper of no shard in particular does: duties of the mesh as a whole.
MESH = ""

Grant = Callable[[], Awaitable[Lease]]


class Membership:
    """Keeps us registered, and divides the shards among all who are."""

    def __init__(
        self,
        member: str,
        shards: Collection[str],
        registry: Registry,
        keys: Keys,
        grant: Grant,
        tasks: Tasks,
        dependency: Dependency,
        value: bytes = b"",
    ) -> None:
        self.name = "membership"
        self.member = member
        self._shards, self._registry, self._keys = tuple(shards), registry, keys
        self._grant, self._tasks = grant, tasks
        self._dependency, self._value = dependency, value
        self._lease: Lease | None = None
        self._staying: asyncio.Task[None] | None = None
        self._kept = frozenset(self._shards)
        self._listeners: list[Callable[[frozenset[str], frozenset[str]], None]] = []
        changed = lambda _: self._divide()  # noqa: E731 - one callback for both directions
        self.others = Follower(registry, keys.schedulers, tasks, came=changed, went=changed)

    @property
    def members(self) -> frozenset[str]:
        """The live schedulers, this one included."""
        return self.others.names | {self.member}

    def keeps(self, shard: str) -> bool:
        """Whether we look after the shard."""
        return shard in self._kept

    def keeps_mesh(self) -> bool:
        """Whether the duties that only one scheduler should have are ours."""
        return keeper_of(MESH, self.members) == self.member

    def on_change(self, listener: Callable[[frozenset[str], frozenset[str]], None]) -> None:
        """Call the listener with the shards we gained and lost, on every change of members."""
        self._listeners.append(listener)

    async def start(self) -> None:
        self._staying = self._tasks.spawn(self._stay_registered(), self.name)
        await self.others.start()

    async def stop(self) -> None:
        """Leave: the others take over at once instead of after the lease's time."""
        if self._staying is not None:
            # First: our key may be there already, and its answer still on the way to us.
            self._staying.cancel()
            await asyncio.wait({self._staying})
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.close()

    async def _stay_registered(self) -> None:
        failures = 0
        while True:
            try:
                lease = await self._register()
            except DependencyUnavailable as error:
                failures += 1
                self._dependency.down(error)
                await asyncio.sleep(BACKOFF.delay(failures))
                continue
            failures = 0
            await lease.lost.wait()

    async def _register(self) -> Lease:
        # Known before its key is: who is told to stop meanwhile gives up both.
        self._lease = lease = await self._grant()
        try:
            await self._registry.put(self._keys.scheduler(self.member), self._value, lease)
        except DependencyUnavailable:
            await lease.close()
            raise
        lease.on_change(self._lease_changed)
        self._dependency.up()
        return lease

    def _lease_changed(self, state: LeaseState) -> None:
        if state is LeaseState.HELD:
            self._dependency.up()
        else:
            self._dependency.down(f"our lease is {state.value}")

    def _divide(self) -> None:
        before, self._kept = self._kept, duties_of(self.member, self._shards, self.members)
        gained, lost = self._kept - before, before - self._kept
        if gained or lost:
            extra = {"action": "duties_changed", "shards": ",".join(sorted(self._kept))}
            log.info("duties changed", extra=extra)
        for listener in self._listeners:
            listener(gained, lost)
