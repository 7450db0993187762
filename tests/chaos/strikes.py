"""How each fault is done, and undone: one async context manager per verb of a kind."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from localmesh.errors import LocalError
from localmesh.harness import RunningMesh
from localmesh.processes import Process, descendants

from services.mesh.testing.faults import Link
from tests.chaos.crew import Crew
from tests.chaos.etcd import EtcdGateway
from tests.chaos.links import Links
from tests.chaos.plan import Fault
from tests.chaos.servers import alter_system, limit_files
from tests.chaos.starts import Starts

T = TypeVar("T")
_START_TRIES = 3
_READY_SECONDS = 30
#: What the recovery of a server takes, many times over.
_RECOVERY_SECONDS = 10
#: What a process may write into one file when "the disk is full".
_FULL_BYTES = 64 * 1024
#: Longer than keep-alives of leases are apart.
_IDLE_SECONDS = 5.0
_LINKS = {
    "hold": Link.HOLD,
    "hold-requests": Link.HOLD_REQUESTS,
    "hold-replies": Link.HOLD_REPLIES,
    "reset": Link.CUT,
    "delay": Link.DELAY,
    "throttle": Link.THROTTLE,
    "cut-after": Link.CUT_AFTER,
}
Detail = dict[str, Any]


class Strikes:
    """Strikes at a mesh. Units are those of the mesh, and the workers of the crew."""

    def __init__(self, mesh: RunningMesh, crew: Crew, links: Links, starts: Starts) -> None:
        self._mesh = mesh
        self._crew = crew
        self._links = links
        self._starts = starts

    def strike(self, fault: Fault, detail: Detail) -> AbstractAsyncContextManager[None]:
        """Inside the block the fault is there; after it everything is as it was, and ready."""
        if fault.verb in _LINKS:
            return self._break_link(fault, detail)
        ways: Mapping[str, Callable[[Fault, Detail], AbstractAsyncContextManager[None]]] = {
            "kill": self._kill_all if fault.target == "all" else self._kill,
            "stop": self._stop,
            "drain": self._drain,
            "restart": self._drain,
            "starve": self._starve,
            "skew": self._skew,
            "readonly": self._make_read_only,
            "lock": self._lock_rows,
            "full": self._fill_disk,
            "quorum": self._lose_quorum,
            "revoke": self._revoke_leases,
            "compact": self._compact,
            "partition": self._partition,
            "drop": self._drop_messages,
            "replay": self._replay_messages,
        }
        return ways[fault.verb](fault, detail)

    # --- processes

    @asynccontextmanager
    async def _kill(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        await _aside(self._name_worker, fault.target, detail)
        unit = fault.target
        if fault.options.get("leader"):
            detail["leader"] = unit = await _aside(self._leader)
        await _aside(self._kill_unit, unit)
        yield
        await self.revive(unit)

    @asynccontextmanager
    async def _kill_all(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        units = [*self._mesh.plan.units, *self._crew.names]
        await asyncio.gather(*(_aside(self._kill_unit, unit) for unit in units))
        yield
        random.Random(fault.options["seed"]).shuffle(units)
        await asyncio.gather(*(self.revive(unit) for unit in units))

    @asynccontextmanager
    async def _stop(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        await _aside(self._name_worker, fault.target, detail)
        self._signal(fault.target, signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(fault.target, signal.SIGCONT)
        self._look(fault.target, detail)
        await self._ready(fault.target)

    @asynccontextmanager
    async def _drain(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        await _aside(self._name_worker, fault.target, detail)
        await _aside(self._end_unit, fault.target)
        yield
        await self.revive(fault.target)

    @asynccontextmanager
    async def _starve(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        """Nine tenths of its time are stolen."""

        family = self._family(fault.target)

        async def steal() -> None:
            while True:
                for process in family:
                    process.signal(signal.SIGSTOP)
                await asyncio.sleep(0.45)
                for process in family:
                    process.signal(signal.SIGCONT)
                await asyncio.sleep(0.05)

        thief = asyncio.create_task(steal(), name=f"starve-{fault.target}")
        try:
            yield
        finally:
            thief.cancel()
            await asyncio.gather(thief, return_exceptions=True)
            self._signal(fault.target, signal.SIGCONT)
        self._look(fault.target, detail)
        await self._ready(fault.target)

    @asynccontextmanager
    async def _skew(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        """It is started anew with a wrong clock, and later with the right one."""
        detail["skew"] = fault.options["skew"]
        self._starts.skew(fault.target, fault.options["skew"])
        try:
            await _aside(self._end_unit, fault.target)
            await self.revive(fault.target)
            yield
        finally:
            self._starts.skew(fault.target, None)
        await _aside(self._end_unit, fault.target)
        await self.revive(fault.target)

    # --- servers

    @asynccontextmanager
    async def _make_read_only(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        dsn = self._dsn(fault.target)
        await _aside(alter_system, dsn, "default_transaction_read_only = on")
        yield
        await _aside(alter_system, dsn, "default_transaction_read_only = off")

    @asynccontextmanager
    async def _lock_rows(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        """Somebody's transaction sits on rows that are waiting to be claimed or reported."""
        connection = await _aside(psycopg.connect, self._dsn(fault.target))
        try:
            rows = await _aside(
                lambda: connection.execute(
                    "SELECT id FROM jobs WHERE state < 4 LIMIT 50 FOR UPDATE SKIP LOCKED"
                ).fetchall()
            )
            detail["rows"] = len(rows)
            yield
        finally:
            with suppress(psycopg.Error):
                await _aside(connection.rollback)
            await _aside(connection.close)

    @asynccontextmanager
    async def _fill_disk(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        """No file of the server may grow: to it, a full disk. It panics, as it should."""
        family = self._family(fault.target)
        detail["limited"] = sum(limit_files(one.pid, str(_FULL_BYTES)) for one in family)
        yield
        # Twice: what its parent started before its own limit was gone has that limit, too.
        for _ in range(2):
            for process in self._family(fault.target):
                limit_files(process.pid, "unlimited")
        if self.lives(fault.target) and not await self._is_ready(fault.target, _RECOVERY_SECONDS):
            # A recovery that could not write may stand still for ever: whoever makes room on a disk
            # starts the server again.
            await _aside(self._kill_unit, fault.target)
        await self._ready(fault.target)

    @asynccontextmanager
    async def _lose_quorum(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        members = self._etcd_members()
        lost = members[len(members) // 2 :]
        detail["lost"] = lost
        await asyncio.gather(*(_aside(self._kill_unit, unit) for unit in lost))
        yield
        await asyncio.gather(*(self.revive(unit) for unit in lost))

    @asynccontextmanager
    async def _revoke_leases(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        detail["leases"] = await _aside(self._gateway(fault.target).revoke_all)
        yield

    @asynccontextmanager
    async def _compact(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        detail["revision"] = await _aside(self._gateway(fault.target).compact)
        yield

    # --- links

    @asynccontextmanager
    async def _break_link(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        caller, _, callee = fault.target.partition(">")
        pair = self._in_use((caller, callee))
        detail["link"] = ">".join(pair)
        link = self._links[pair]
        passed = link.passed
        said = fault.options
        seconds, size = said.get("delay", 0.0), said.get("bytes", 0)
        layer = link.lay(_LINKS[fault.verb], seconds=seconds, bytes_=size)
        try:
            yield
        finally:
            detail |= {"passed": link.passed - passed, "met": layer.met}
            link.lift(layer)

    def _in_use(self, planned: tuple[str, str]) -> tuple[str, str]:
        """The link that is meant; if nothing was sent there lately, the one of the same caller that
        was used last. To hold up what nobody sends is no fault.
        """
        since = asyncio.get_running_loop().time() - _IDLE_SECONDS
        if self._links[planned].last_met >= since:
            return planned
        mine = [planned, *(pair for pair in self._links if pair[0] == planned[0])]
        return max(mine, key=lambda pair: self._links[pair].last_met)

    @asynccontextmanager
    async def _partition(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        await _aside(self._name_worker, fault.target, detail)
        layers = [(link, link.lay(Link.HOLD)) for link in self._links.of(fault.target)]
        try:
            yield
        finally:
            detail["met"] = sum(layer.met for _, layer in layers)
            for link, layer in layers:
                link.lift(layer)
        self._look(fault.target, detail)
        await self._ready(fault.target)

    @asynccontextmanager
    async def _drop_messages(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        taps = self._links.taps.values()
        before = sum(tap.dropped for tap in taps)
        for tap in taps:
            tap.lose(fault.options["share"], fault.options["seed"])
        try:
            yield
        finally:
            for tap in taps:
                tap.lose(0.0)
            detail["dropped"] = sum(tap.dropped for tap in taps) - before

    @asynccontextmanager
    async def _replay_messages(self, fault: Fault, detail: Detail) -> AsyncIterator[None]:
        """Everything that was delivered lately comes again, at once and at the end."""
        taps = self._links.taps.values()
        detail["repeated"] = sum(tap.repeat(fault.options["seed"]) for tap in taps)
        yield
        detail["repeated"] += sum(tap.repeat(fault.options["seed"] + 1) for tap in taps)

    # --- units

    def lives(self, unit: str) -> bool:
        if unit in self._crew.names:
            return self._crew.lives(unit)
        return self._mesh.process(unit).alive()

    def found_dead(self, fault: Fault) -> list[str]:
        """Those it is about to strike that have ended already, by themselves."""
        units = [*self._mesh.plan.units, *self._crew.names]
        struck = units if fault.target == "all" else [u for u in fault.units if u in units]
        return [unit for unit in struck if not self.lives(unit)]

    def _look(self, unit: str, detail: Detail) -> None:
        """Write down one that did not survive what it should have: it is started again."""
        if not self.lives(unit):
            detail["ended"] = [unit]

    async def mend(self) -> None:
        """After a fault that could not be done or undone: start again what it left dead."""
        dead = [
            unit for unit in [*self._mesh.plan.units, *self._crew.names] if not self.lives(unit)
        ]
        await asyncio.gather(*(self.revive(unit) for unit in dead), return_exceptions=True)

    async def revive(self, unit: str) -> None:
        """Start a unit that is down, and wait until it can work."""
        self._starts.turn(unit)
        if unit in self._crew.names:
            await _aside(self._crew.start, unit)
            return
        for left in reversed(range(_START_TRIES)):
            try:
                await _aside(self._mesh.start, unit)
                break
            except LocalError:  # what it needs is away for longer than a start may take
                if not left:
                    raise

    async def _ready(self, unit: str) -> None:
        if unit in self._crew.names:
            return
        if not self.lives(unit):
            await self.revive(unit)
        await self._is_ready(unit, _READY_SECONDS)

    async def _is_ready(self, unit: str, seconds: float) -> bool:
        """Whether it can work, in so many seconds; what it needs may be away, and others look after
        that.
        """
        try:
            await _aside(lambda: self._mesh.wait_ready(unit, seconds=seconds))
        except LocalError:
            return False
        return True

    def _kill_unit(self, unit: str) -> None:
        if unit in self._crew.names:
            self._crew.kill(unit)
        else:
            self._mesh.kill(unit)

    def _end_unit(self, unit: str) -> None:
        if unit in self._crew.names:
            self._crew.drain(unit)
        else:
            self._mesh.stop(unit)

    def _signal(self, unit: str, number: signal.Signals) -> None:
        for process in self._family(unit):
            process.signal(number)

    def _family(self, unit: str) -> list[Process]:
        """The process of a unit, and those it has started."""
        if unit in self._crew.names:
            process = Process.of(self._crew.pid(unit))
        else:
            process = self._mesh.process(unit)
        return [process, *descendants({process})] if process is not None else []

    def _name_worker(self, unit: str, detail: Detail) -> None:
        if unit in self._crew.names:
            detail["worker_id"] = self._crew.identity(unit)
            detail["pid"] = self._crew.pid(unit)

    def _dsn(self, unit: str) -> str:
        return self._mesh.shard_dsns["s" + unit.rpartition("-")[2]]

    def _leader(self) -> str:
        """The member of etcd that leads, now."""
        return next(unit for unit in self._etcd_members() if self._gateway(unit).leads())

    def _etcd_members(self) -> list[str]:
        return [unit for unit in self._mesh.plan.units if unit.startswith("etcd")]

    def _gateway(self, unit: str) -> EtcdGateway:
        return EtcdGateway(next(iter(self._mesh.plan.units[unit].ports.values())))


async def _aside(work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.to_thread(work, *arguments)
