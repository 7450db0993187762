"""The shards, each behind its gate: one that is away stops nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from services.mesh.errors import OutcomeUnknown, ShardBusy, ShardNotFound, ShardUnavailable
from services.mesh.runtime import Backoff, Dependency, Tasks
from services.scheduler.app.measures import Measures
from services.scheduler.domain.gate import Gate
from services.scheduler.domain.times import ShardClock
from services.scheduler.ports import Shard

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Between probes of a shard that is away, however long: one that is back should be served within
#: three seconds, and two connections a second hurt no server.
PROBE_BACKOFF = Backoff(first=0.2, ceiling=0.5, least=0.05)
PROBE_SECONDS = 1.0


class Shards:
    """All shards of the configuration. Whoever asks one goes through `ask`, which knows the gate.

    The dependency is up while at least one shard is: with that there is something to serve.
    """

    def __init__(
        self,
        stores: Mapping[str, Shard],
        tasks: Tasks,
        dependency: Dependency,
        measures: Measures,
    ) -> None:
        self._stores = dict(stores)
        self._gates = {name: Gate() for name in stores}
        #: What the shards' clocks show; whoever reads one says so.
        self.clocks = {name: ShardClock() for name in stores}
        self._tasks = tasks
        self._dependency = dependency
        self._measures = measures
        self._listeners: list[Callable[[str], None]] = []

    @property
    def names(self) -> list[str]:
        return list(self._stores)

    def gate(self, name: str) -> Gate:
        if name not in self._gates:
            raise ShardNotFound(name)
        return self._gates[name]

    def on_open(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the name of each shard that is served from now on."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Begin to look for all shards; returns at once."""
        for name in self._stores:
            self._probe_until_open(name)

    async def stop(self) -> None:
        """Nothing to do: the probes end with the process's tasks."""

    async def ask(self, name: str, question: Callable[[Shard], Awaitable[T]]) -> T:
        """Ask an open shard; its failure to answer closes the gate. That it gave a statement up is
        an answer: one that takes too long must not take the shard away from all others.
        """
        gate = self.gate(name)
        if not gate.open:
            raise ShardUnavailable(name)
        try:
            return await question(self._stores[name])
        except ShardBusy:
            raise
        except (ShardUnavailable, OutcomeUnknown) as error:
            if gate.failed(error.message):
                self._closed(name, error.message)
            raise

    def _closed(self, name: str, error: str) -> None:
        extra = {"action": "shard_closed", "shard": name, "error": error}
        log.warning("shard is away", extra=extra)
        self._tell(name)
        self._probe_until_open(name)

    def _probe_until_open(self, name: str) -> None:
        self._tasks.spawn(self._probe(name), f"probe-{name}")

    async def _probe(self, name: str) -> None:
        gate = self._gates[name]
        while not gate.open:
            try:
                if not (await self._stores[name].probe(PROBE_SECONDS)).writable:
                    # It answers, and would refuse every claim: the gate would close at once.
                    raise ShardUnavailable(name, why="is read only")
            except (ShardUnavailable, OutcomeUnknown) as error:
                gate.failed(error.message)
                await asyncio.sleep(PROBE_BACKOFF.delay(gate.failures))
            else:
                gate.answered()
        log.info("shard is served", extra={"action": "shard_open", "shard": name})
        self._tell(name)
        for listener in self._listeners:
            listener(name)

    def _tell(self, name: str) -> None:
        self._measures.shard_open(name, self._gates[name].open)
        if any(gate.open for gate in self._gates.values()):
            self._dependency.up()
        else:
            self._dependency.down("; ".join(f"{n}: {g.error}" for n, g in self._gates.items()))
