"""The matrix: every failpoint with every action, and what makes work pass each of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from services.mesh.failpoints import Place
from tests.failpoints.places import places
from tests.failpoints.rig import PAUSE_SECONDS, Rig

#: What every place is struck with; `drop` only where something can get lost.
ACTIONS: Mapping[str, str] = {
    "kill": "kill",
    "pause": f"pause:{PAUSE_SECONDS}s",
    "raise": "raise",
    "drop": "drop",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One strike."""

    place: Place
    action: str

    @property
    def order(self) -> str:
        return ACTIONS[self.action]

    def __str__(self) -> str:
        return f"{self.place.name} {self.action}"


def cells(pattern: str = "*", actions: tuple[str, ...] = tuple(ACTIONS)) -> Iterator[Cell]:
    """Every failpoint that fits the pattern, with every action that makes sense there."""
    for place in places():
        for action in actions:
            if fnmatch.fnmatch(place.name, pattern) and (action != "drop" or place.lossy):
                yield Cell(place, action)


# --- what makes work pass a place that the load alone does not pass

Strike = Callable[[Rig, Cell], Awaitable[None]]


async def under_load(rig: Rig, cell: Cell) -> None:
    """The load passes it."""
    await rig.arm(cell.place.service, cell.place.name, cell.order)


async def at_birth(rig: Rig, cell: Cell) -> None:
    """Only a process that begins passes it."""
    import asyncio

    await asyncio.to_thread(rig.reborn, cell.place.service, cell.place.name, cell.order)


async def at_the_end(rig: Rig, cell: Cell) -> None:
    """Only a process that ends passes it."""
    await under_load(rig, cell)
    rig.told_to_end(cell.place.service)


async def after_a_lost_dispatch(rig: Rig, cell: Cell) -> None:
    """Workers hear nothing of what they are sent: an answer that is lost may be an empty one."""
    await under_load(rig, cell)
    await rig.arm("worker", "worker.received", "drop@2+")


async def after_a_lost_hint(rig: Rig, cell: Cell) -> None:
    """Watches never hear of some transitions, and have to read them."""
    await under_load(rig, cell)
    await rig.arm("orchestrator", "orchestrator.hint.begins", "drop@1+")


async def after_a_death(rig: Rig, cell: Cell) -> None:
    """A worker dies with jobs in hand."""
    await under_load(rig, cell)
    await rig.arm("worker", "worker.run.begins", "kill@5")


async def beside_an_empty_pool(rig: Rig, cell: Cell) -> None:
    """Jobs of a type that is known and has no workers expire."""
    await rig.pool(0)
    await under_load(rig, cell)


async def around_a_pool(rig: Rig, cell: Cell) -> None:
    """A pool grows by one, and shrinks again."""
    await under_load(rig, cell)
    await rig.pool(1)
    await rig.pool(0)


_STRIKES: Mapping[str, Strike] = {
    "orchestrator.topology.met": at_birth,
    "scheduler.registered": at_birth,
    "worker.joined": at_birth,
    "worker.registered": at_birth,
    "scaler.leads": at_birth,
    "*.drain.*": at_the_end,
    "worker.leaving": at_the_end,
    "enqueue.watch.read": after_a_lost_hint,
    "orchestrator.events.read": after_a_lost_hint,
    "scheduler.sweep.*": after_a_lost_dispatch,
    "scheduler.rescue.*": after_a_death,
    "scheduler.expire.*": beside_an_empty_pool,
    "scaler.*": around_a_pool,
}


def strike_of(cell: Cell) -> Strike:
    """The first entry that fits."""
    name = cell.place.name
    found = (strike for pattern, strike in _STRIKES.items() if fnmatch.fnmatch(name, pattern))
    return next(found, under_load)


#: All the quick kinds of jobs, so that every path is taken.
_MIX: Mapping[str, float] = {
    "plain": 8,
    "batch": 4,
    "keyed": 4,
    "executor": 2,
    "flaky": 3,
    "large": 3,
    "cancelled": 6,
    "expiring": 2,
}


#: What only one kind of job passes, which is then asked for more often.
_PASSED_BY: Mapping[str, str] = {
    "*.upload.*": "large",
    "*.cancel.*": "cancelled",
    "*.tie.*": "rivals",
    "*.replace.*": "rivals",
    "*.redrive.*": "bulk",
    "scheduler.expire.*": "forgotten",
}
_OFTEN = 12.0


def mix_of(cell: Cell) -> Mapping[str, float]:
    """Kinds of jobs for the load of a cell, such that it passes the place for certain."""
    name = cell.place.name
    often = (kind for places, kind in _PASSED_BY.items() if fnmatch.fnmatch(name, places))
    return {**_MIX, **dict.fromkeys(often, _OFTEN)}
