"""A hub of watches over a source that tells the truth and a feed that may lose anything."""

from uuid import NAMESPACE_OID, uuid5

from services.enqueue.app.watch import Kind
from services.enqueue.app.watches import WatchHub
from services.enqueue.ports import Change
from services.mesh.clock import ManualClock
from services.mesh.errors import JobNotFound
from services.mesh.runtime import DrainSignal
from services.mesh.telemetry.metrics import Metrics

J, K, NOBODY = (str(uuid5(NAMESPACE_OID, name)) for name in ("j", "k", "nobody"))
NAMES = {J: "j", K: "k"}


class Rows:
    """The truth: per job the events so far; the last one is terminal when `ended`."""

    def __init__(self) -> None:
        self.events: dict[str, list[Change]] = {}
        self.lagging: list[str] = []

    def add(self, job: str, *, ended: bool = False) -> Change:
        events = self.events.setdefault(job, [])
        change = Change(job, len(events) + 1, ended, f"{NAMES.get(job, job)} v{len(events) + 1}")
        events.append(change)
        return change

    async def snapshots(self, namespace, job_ids):
        for job in job_ids:
            if job not in self.events:
                raise JobNotFound(job)
        return [self.events[job][-1] for job in job_ids]

    async def ends(self, namespace, jobs):
        for job in jobs.values():
            if job not in self.events:
                raise JobNotFound(job)
        last = [self.events[job][-1] for job in jobs.values()]
        return [change for change in last if change.terminal], self.lagging

    async def changes_after(self, seen):
        events = self.events
        changes = [c for job, v in seen.items() for c in events.get(job, ()) if c.version > v]
        return changes, self.lagging


class Feed:
    def __init__(self) -> None:
        self.sink = None

    async def open(self, wanted, sink, ends_only=None):
        self.sink = sink
        self.ends_only = ends_only

    async def close(self):
        self.sink = None


class Stand:
    """A hub with its surroundings."""

    def __init__(self, backlog: int = 100) -> None:
        self.rows, self.feed, self.drain, self.clock = Rows(), Feed(), DrainSignal(), ManualClock()
        self.advances = Feed()
        self.hub = WatchHub(
            self.rows,
            self.feed,
            self.advances,
            self.clock,
            self.drain,
            Metrics(),
            reread=2.0,
            heartbeat=0.05,
            backlog=backlog,
        )

    async def reread(self, seconds: float = 3) -> None:
        self.clock.advance(seconds)
        await self.hub.run_once()


async def take(watch, count):
    return [(await anext(watch)) for _ in range(count)]


async def news(watch):
    """The next delivery that is no heartbeat."""
    while (delivery := await anext(watch)).kind is Kind.HEARTBEAT:
        pass
    return delivery
