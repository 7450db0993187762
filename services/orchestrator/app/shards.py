"""The shards as one process sees them: open stores, and the breaker of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from services.mesh.clock import Clock
from services.mesh.errors import MeshError, ShardNotFound, ShardUnavailable
from services.mesh.jobs.health import Health, ShardHealth
from services.mesh.runtime import Counts, Dependency, Loop
from services.mesh.store.answers import ProbeResult
from services.mesh.store.port import ShardStore

log = logging.getLogger(__name__)

#: How long a probe may take: a shard that hangs is away after three of these.
PROBE_TIMEOUT = 0.4
#: The same while it is away. Nobody waits for it then, and on a machine without time to spare no
#: connection is had in less: it would stay away for as long as that lasts. One that hangs answers
#: the probe that is under way when it goes on.
AWAY_TIMEOUT = 2.0
#: Share of the probe interval after which a shard in doubt is asked again.
HURRY = 0.2
#: How many times longer a shard is left alone that answered nobody else since the last probe: who
#: comes then, and is kept waiting or refused, has it probed at once.
UNUSED = 4.0
#: So many answers since the last probe are nobody's: the load is read now and then.
NOBODYS = 1
#: How long callers are asked to wait while a breaker is open: about until it may have closed.
RETRY_AFTER = 1.0
#: What operators read about a shard that answers and is not used.
NOT_DURABLE = "it would lose commits: fsync, full_page_writes or synchronous_commit is off"


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard's condition, as this process sees it."""

    breaker: ShardHealth
    change_time: datetime
    last_error: str = "not probed yet"
    probe_ms: float = 0.0
    incarnation: str = ""

    @property
    def health(self) -> Health:
        return self.breaker.health


class Shards:
    """All configured shards. A shard whose breaker is open is refused before any I/O."""

    def __init__(self, stores: Mapping[str, ShardStore], clock: Clock, ready: Dependency) -> None:
        self._stores = dict(stores)
        self._clock = clock
        self._ready = ready
        self._views = {name: ShardView(ShardHealth(), clock.now()) for name in stores}
        self._listeners: list[Callable[[], None]] = []
        self._probers: dict[str, Callable[[], None]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._stores)

    def store(self, name: str) -> ShardStore:
        """The store of a shard that answers; ShardUnavailable if it does not."""
        store = self._stores.get(name)
        if store is None:
            raise ShardNotFound(name)
        if not self._views[name].breaker.usable:
            raise ShardUnavailable(name, retry_after=RETRY_AFTER)
        return store

    def usable(self) -> list[str]:
        return [name for name, view in self._views.items() if view.breaker.usable]

    def views(self) -> Mapping[str, ShardView]:
        return self._views

    def all_stores(self) -> Iterable[ShardStore]:
        return self._stores.values()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever a shard's health changes; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def doubt(self, name: str) -> None:
        """A call found the shard away: do not wait for the next probe to find it too."""
        self._probers[name]()

    def probed_by(self, name: str, probe_now: Callable[[], None]) -> None:
        self._probers[name] = probe_now

    def probed(self, name: str, result: ProbeResult, milliseconds: float) -> None:
        incarnation = str(result.incarnation)
        self._after_probe(name, True, last_error="", probe_ms=milliseconds, incarnation=incarnation)

    def missed(self, name: str, error: str) -> None:
        self._after_probe(name, False, last_error=error)

    def _after_probe(self, name: str, ok: bool, **seen: object) -> None:
        before = self._views[name]
        breaker = before.breaker.after_probe(ok)
        changed = breaker.health is not before.health
        time = self._clock.now() if changed else before.change_time
        self._views[name] = replace(before, breaker=breaker, change_time=time, **seen)  # type: ignore[arg-type]
        if changed and breaker.health is Health.AWAY:
            # Whoever waits for it holds up others: a batch is answered when all its shards have.
            self._stores[name].abandon()
        if changed:
            self._tell(name, before.health, self._views[name])

    def _tell(self, name: str, before: Health, view: ShardView) -> None:
        extra = {"action": "shard_health", "shard": name, "before": before.value}
        level = logging.INFO if view.health is Health.HEALTHY else logging.WARNING
        log.log(level, "shard %s is %s %s", name, view.health.value, view.last_error, extra=extra)
        if self.usable():
            self._ready.up()
        else:
            self._ready.down("no shard answers")
        for listener in self._listeners:
            listener()


class Prober(Loop):
    """Asks one shard for a sign of life; brings its schema up to date before it counts as alive."""

    def __init__(self, shards: Shards, store: ShardStore, clock: Clock, seconds: float) -> None:
        super().__init__(f"prober {store.name}", interval=seconds)
        self._shards, self._store, self._clock, self._seconds = shards, store, clock, seconds
        self._migrated = False
        #: What it had answered after the last probe, and whether only probes since the one before.
        self._answers, self._unused = 0, False
        shards.probed_by(store.name, self.nudge)
        # A shard that hangs is in doubt as soon as somebody waits for it.
        store.when_slow(self.nudge)

    def rest(self) -> float:
        return super().rest() * (UNUSED if self._unused else 1.0)

    async def run_once(self) -> Counts:
        self._unused = self._store.answers - self._answers <= NOBODYS
        try:
            return await self._probed()
        finally:
            self._answers = self._store.answers

    async def _probed(self) -> Counts:
        began = self._clock.monotonic()
        try:
            if not self._migrated:
                await self._migrate()
            result = await self._asked()
            if result is None:
                await self._hurry(began)
                return {"slow": 1}
            if not result.writable:
                raise ShardUnavailable(self._store.name)
            if not result.durable:
                # An acknowledged job is on disk. A shard that cannot promise it gets none.
                raise ShardUnavailable(self._store.name) from RuntimeError(NOT_DURABLE)
        except MeshError as error:
            self._shards.missed(self._store.name, str(error.__cause__ or error))
            await self._hurry(began)
            return {"missed": 1}
        self._shards.probed(self._store.name, result, (self._clock.monotonic() - began) * 1000)
        if self._shards.views()[self._store.name].health is not Health.HEALTHY:
            await self._hurry(began)
        return {}

    async def _asked(self) -> ProbeResult | None:
        """What the shard says about itself; None if it had no time for us, but for others."""
        health, answers = self._shards.views()[self._store.name].health, self._store.answers
        try:
            return await self._store.probe(AWAY_TIMEOUT if health is Health.AWAY else PROBE_TIMEOUT)
        except MeshError:
            if health is Health.AWAY or self._store.answers == answers:
                raise
            return None

    async def _hurry(self, began: float) -> None:
        """A shard in doubt is asked again soon: a healthy one need not be asked that often. What
        the probe took counts: one that was not answered has been waited for long enough.
        """
        took = self._clock.monotonic() - began
        await asyncio.sleep(max(0.0, self._seconds * HURRY - took))
        self.nudge()

    async def _migrate(self) -> None:
        for name in await self._store.migrate():
            extra = {"action": "migrated", "shard": self._store.name, "migration": name}
            log.info("applied migration", extra=extra)
        self._migrated = True
