"""The load of a chaos run: clients, schedules and watchers, for as long and as many as planned.

    load = Load(mesh.targets("enqueue"), folder, LoadPlan(seed=1, jobs=300, seconds=10))
    await load.run()        # everything was submitted
    ...                     # heal, and wait until the mesh is done: `dump.settle`
    await load.finish()     # watchers heard the last of it; schedules are paused

`python -m tests.chaos.load FOLDER` does the same in a process of its own, after `load.json` in that
folder; it finishes when its standard input is closed. Journals: `history.jsonl`, `watches.jsonl`,
`progress.json` (rewritten twice a second).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from jobmesh.errors import JobmeshError

from services.mesh.testing.waiting import eventually
from tests.chaos.calls import Ring, connect
from tests.chaos.clients import ChaosClient
from tests.chaos.history import Journal, now
from tests.chaos.ledger import digest
from tests.chaos.orders import (
    LANE,
    LANES,
    LIMITED,
    MIX,
    OVERLAPPING,
    PER_KEY,
    Order,
    OrderBook,
    Recurring,
)
from tests.chaos.watchers import TERMINAL, Watcher

NAMESPACES = ("blue", "red")
ENOUGH, SUBMITTED, PAUSED = "load.enough", "load.submitted", "load.paused"
_PROGRESS_SECONDS = 0.5
_LAST_WORDS_SECONDS = 20.0
_PATIENCE_SECONDS = 60.0
#: Ids that one watch by ids follows.
_GROUP = 10


@dataclass(frozen=True)
class LoadPlan:
    """How much of what."""

    seed: int
    jobs: int
    seconds: float
    """Submissions are spread over this time."""
    clients: int = 12
    schedules: int = 2
    overlaps: bool = False
    """And those whose runs get in each other's way."""
    watchers: int = 1
    """Watchers by filter, per namespace."""
    watch_every: int = 20
    """One acknowledged job in so many is watched by id, ten of them in one watch."""
    linger: bool = False
    """Go on at the same pace until the file `load.enough` appears, however many jobs that are."""
    in_full: bool = True
    """Submit all of them, even if that takes longer; else the pace counts, and `linger` decides."""
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))


class Load:
    """Everything clients do to a mesh during one run."""

    def __init__(self, targets: Sequence[str], folder: Path, plan: LoadPlan) -> None:
        self._clients = connect(targets)
        self._folder = folder
        self._plan = plan
        self._ledger = str(folder / "effects.log")
        self._history = Journal(folder / "history.jsonl")
        self._watches = Journal(folder / "watches.jsonl")
        self._tasks: list[asyncio.Task[None]] = []
        self._groups: list[asyncio.Task[None]] = []
        self._fresh: dict[str, list[str]] = {}
        self.submitted = 0
        self.acked: set[str] = set()
        self.ended: set[str] = set()

    @property
    def open(self) -> int:
        """Acknowledged jobs that no watcher has seen end."""
        return len(self.acked - self.ended)

    async def run(self) -> None:
        """Submit everything; returns when the last answer is in."""
        self._spawn(self._report(), "progress")
        for number in range(self._plan.watchers):
            for space in NAMESPACES:
                await self._watch_all(space, number)
        await self._create_schedules()
        if self._plan.mix.get("limited"):
            await self._set_limit(LIMITED)
        if self._plan.mix.get("lane"):
            await self._set_limit(LANE, LANES)
        lots: asyncio.Queue[list[Order]] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self._client(n, lots)) for n in range(self._plan.clients)]
            await self._hand_out(lots)
            for _ in clients:
                await lots.put([])

    async def finish(self, stored: Collection[str] = ()) -> None:
        """Pause the schedules first with `pause`; then: let watchers hear the end, and close. Of
        jobs that are `stored`, though nobody was told so, they shall hear, too.
        """
        wanted = self.acked | set(stored)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await asyncio.gather(*self._groups)
                await eventually(lambda: wanted <= self.ended, _LAST_WORDS_SECONDS)
        for task in [*self._groups, *self._tasks]:
            task.cancel()
        await asyncio.gather(*self._groups, *self._tasks, return_exceptions=True)
        self._write_progress()
        for client in self._clients:
            await client.close()
        self._history.close()
        self._watches.close()

    async def pause(self) -> None:
        """Pause the schedules, so that the mesh can come to rest."""
        for schedule in self._schedules():
            await self._stubbornly("pause", schedule)

    # --- submitting

    async def _hand_out(self, lots: asyncio.Queue[list[Order]]) -> None:
        """At an even pace; clients that fell behind catch up."""
        book = OrderBook(self._plan.seed, self._ledger, NAMESPACES, self._plan.mix)
        loop = asyncio.get_running_loop()
        begin, pace = loop.time(), self._plan.seconds / self._plan.jobs
        for lot in book.lots(self._plan.jobs if self._plan.in_full else 0, self._is_wanted):
            await asyncio.sleep(max(0.0, begin + self.submitted * pace - loop.time()))
            await lots.put(lot)
            self.submitted += len(lot)

    def _is_wanted(self) -> bool:
        return self._plan.linger and not (self._folder / ENOUGH).exists()

    async def _client(self, number: int, lots: asyncio.Queue[list[Order]]) -> None:
        client = ChaosClient(f"c{number}", self._ring(number), self._history, self._acknowledged)
        while lot := await lots.get():
            await client.submit(lot)
        await client.close()

    def _acknowledged(self, job: str, namespace: str) -> None:
        if job in self.acked:  # sent once more under its key
            return
        self.acked.add(job)
        fresh = self._fresh.setdefault(namespace, [])
        if len(self.acked) % self._plan.watch_every == 0:
            fresh.append(job)
        if len(fresh) >= _GROUP:
            self._watch_some(namespace, fresh[:])
            fresh.clear()

    # --- schedules

    async def _create_schedules(self) -> None:
        for schedule in self._schedules():
            await self._stubbornly("create", schedule)

    def _schedules(self) -> list[Recurring]:
        plain = [Recurring(f"every-second-{number}") for number in range(self._plan.schedules)]
        return [*plain, *(OVERLAPPING if self._plan.overlaps else ())]

    async def _stubbornly(self, what: str, schedule: Recurring) -> None:
        """Create or pause a schedule; both may be repeated until somebody answers."""
        ring = self._ring(0)
        deadline = now() + _PATIENCE_SECONDS
        name = schedule.name
        said = {"ledger": self._ledger, "tag": name, "seconds": schedule.seconds}
        options: dict[str, Any] = {"every": schedule.every, "catch_up": "all"}
        if schedule.overlap:
            options["overlap"] = schedule.overlap
        while True:
            begin = now()
            schedules, space = ring.client.schedules, NAMESPACES[0]
            try:
                if what == "create":
                    await schedules.create(name, schedule.type, said, namespace=space, **options)
                else:
                    await schedules.pause(name, namespace=NAMESPACES[0])
            except JobmeshError:
                if now() > deadline:
                    raise
                ring.turn()
                await asyncio.sleep(0.5)
            else:
                fields = {"name": name, "begin": begin, "end": now(), "outcome": "ok", **options}
                self._history.write(op=f"schedule.{what}", **fields, input=digest(said))
                return

    # --- limits

    async def _set_limit(self, type_: str, total: int = 0) -> None:
        """Before the first job that it is about."""
        ring, begin = self._ring(0), now()
        while True:
            try:
                await ring.client.set_type_settings(
                    type_, max_running=total, max_running_per_key=PER_KEY
                )
                break
            except JobmeshError:
                if now() > begin + _PATIENCE_SECONDS:
                    raise
                ring.turn()
                await asyncio.sleep(0.5)
        fields = {"begin": begin, "end": now(), "outcome": "ok"}
        self._history.write(op="limit", type=type_, per_key=PER_KEY, total=total, **fields)

    # --- watching

    async def _watch_all(self, namespace: str, number: int) -> None:
        def told(job: str, version: int, state: int) -> None:
            if state in TERMINAL:
                self.ended.add(job)

        name = f"all-{namespace}-{number}"
        ring = self._ring(number)
        watcher = Watcher(name, ring, self._watches, namespace=namespace, on_told=told)
        self._spawn(watcher.run(), name)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await watcher.live.wait()

    def _watch_some(self, namespace: str, jobs: list[str]) -> None:
        name = f"ids-{namespace}-{len(self._groups)}"
        ring = self._ring(len(self._groups))
        watcher = Watcher(name, ring, self._watches, namespace=namespace, job_ids=jobs)
        self._groups.append(asyncio.create_task(watcher.run(), name=name))

    # --- the rest

    def _ring(self, first: int) -> Ring:
        return Ring(self._clients, first)

    def _spawn(self, work: Any, name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _report(self) -> None:
        while True:
            self._write_progress()
            await asyncio.sleep(_PROGRESS_SECONDS)

    def _write_progress(self) -> None:
        said = {"at": now(), "submitted": self.submitted, "acked": len(self.acked)}
        text = json.dumps({**said, "ended": len(self.ended), "open": self.open})
        part = self._folder / "progress.json.part"
        part.write_text(text)
        part.replace(self._folder / "progress.json")


async def _process(folder: Path) -> None:
    told = json.loads((folder / "load.json").read_text())
    load = Load(told["targets"], folder, LoadPlan(**told["plan"]))
    await load.run()
    (folder / SUBMITTED).touch()
    await asyncio.to_thread(sys.stdin.readline)  # "pause", when everything is healed
    await load.pause()
    (folder / PAUSED).touch()
    await asyncio.to_thread(sys.stdin.readline)  # the mesh is at rest
    await load.finish()


def write_settings(folder: Path, targets: Sequence[str], plan: LoadPlan) -> None:
    """What the process in `folder` shall do."""
    text = json.dumps({"targets": list(targets), "plan": asdict(plan)})
    (folder / "load.json").write_text(text)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    grpc.aio.init_grpc_aio()
    asyncio.run(_process(Path(sys.argv[1])))
