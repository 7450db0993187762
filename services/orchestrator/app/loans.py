"""Grabs on loan: new jobs that are handed to a worker by the statement that stores them.

The usual way of a job that is due at once leads from its put over a nudge to a scheduler, which
claims it for a worker that has asked for work: two messages, a process and a commit to disk later.
While nothing of a type waits, all that decides nothing: whoever asks first gets the job. So a
scheduler that has a worker's grab and nothing for it lends it to the Orchestrator that stored the
type's jobs lately. That one stores the next ones as DISPATCHED to the worker, and sends them there
when they are committed (docs/adr/0016).

A put takes the part of a grab that it needs, so that puts beside each other and right after each
other are all handed out (`domain.lent`).

**A loan is a right to keep grabs of one type**, for seconds. With the jobs the worker is told to
send its next grab here, so that a steady stream passes no scheduler at all. The right ends

* when something of the type was stored, or came back, that is not handed out: it is in the queue,
  schedulers were nudged, and they need the room;
* when a scheduler recalls it, because it has work of the type and no credit;
* when the type is paused;
* by itself. Then grabs are answered empty, go to a scheduler again, and are lent again if nothing
  waits.

What comes after its end is passed on to a scheduler. So nobody overtakes anybody who waits, but by
a hair.

**Safety** is the claim's: the row is DISPATCHED with a fence before anybody is told, and commit
comes before publish. A dispatch that is lost is found by the sweep, a worker that is lost by the
rescue, like any other. Grabs that are lost with an Orchestrator are called for by the schedulers
that see work stay due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, Draining, MeshError
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed, NewJob
from services.mesh.runtime import Tasks
from services.mesh.store.answers import PutAnswer
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing, sampled
from services.orchestrator.app.shards import Shards
from services.orchestrator.domain.handing import dispatches, handed_type
from services.orchestrator.domain.lent import LentBook, Part
from services.orchestrator.ports import Hands

log = logging.getLogger(__name__)


class Loans:
    """The rights that are in force, and the grabs that came under them."""

    def __init__(
        self,
        hands: Hands,
        shards: Shards,
        tasks: Tasks,
        clock: Clock,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self._hands, self._shards = hands, shards
        self._tasks, self._clock, self._tracing = tasks, clock, tracing
        self._book = LentBook()
        #: Whether a type is paused, or has limits, whose places are counted by schedulers: they do
        #: not lend it; but may have done so a moment ago.
        self.is_barred: Callable[[str], bool] = lambda type_: False
        #: By type, what ends its right.
        self._rights: dict[str, asyncio.TimerHandle] = {}
        by = ("type", "shard")
        self._handed = metrics.counter("handed", "Jobs stored into a worker's hands.", by)
        self._unsent = metrics.counter("unsent", "Handed out, could not be sent, taken back.", by)

    # --- what others say

    def grabbed(self, grab: Grab, seconds: float) -> None:
        """A scheduler lends a grab, and so the right to keep those of its type for so long; or a
        worker grabs here, as it was told (0 seconds).
        """
        if seconds > 0:
            self._begin(grab.type, seconds)
        self._take_in(grab)
        if grab.type not in self._rights:
            self._pass_on(grab.type)

    def withdrawn(self, grab: Grab) -> None:
        """A worker has nobody left to run the type."""
        self._take_in(grab)

    def worker_lost(self, worker_id: str) -> None:
        self._book.drop_worker(worker_id)

    def recalled(self, type_: str, to: str) -> None:
        """A scheduler has work of the type, and no credit."""
        self._end(type_, to)

    def barred(self, type_: str) -> None:
        """Jobs of a type shall not be handed out here any more."""
        self._end(type_)

    def nudged(self, types: Iterable[str]) -> None:
        """Schedulers were told of work of these types, and need the room."""
        if self._rights:
            for type_ in types:
                self._end(type_)

    def close(self) -> None:
        """End all rights."""
        for type_ in list(self._rights):
            self._end(type_)

    # --- new jobs

    def take(self, jobs: Sequence[NewJob]) -> Part | None:
        """The room of a worker for all of these jobs, if they may be handed out."""
        if not self._rights or not self._hands.connected:
            return None
        type_ = handed_type(jobs)
        if type_ is None or type_ not in self._rights or self.is_barred(type_):
            return None
        return self._book.take(type_, len(jobs))

    async def deliver(
        self, part: Part, shard: str, jobs: Sequence[NewJob], answer: PutAnswer
    ) -> None:
        """Send the worker what was stored into its hands, which ends a `take`. Never raises: they
        are stored, and what it does not get the sweep finds.
        """
        handed = dispatches(jobs, answer)
        if not handed:
            self.give_back(part)
            return
        answer.delivered = True
        more = part.grab.type in self._rights and self._book.leaves_more(part)
        answered = not more and self._book.answer(part.grab)
        used = len(handed)
        try:
            await self._dispatch(part.grab, shard, handed, more=more)
        except DependencyUnavailable:
            used = 0
            if answered:
                self._book.reopen(part.grab)
        except Exception:
            extra = {"action": "handing_failed", "shard": shard, "count": used}
            log.exception("jobs in a worker's hands are left to the sweep", extra=extra)
        finally:
            self._settle(part, used, answered=answered)
        if used:
            self._handed.labels(part.grab.type, shard).inc(used)
        else:
            answer.delivered = not await self._take_back(shard, handed)

    def give_back(self, part: Part) -> None:
        """End a `take` that brought the worker nothing."""
        self._settle(part, 0)

    def _settle(self, part: Part, used: int, *, answered: bool = False) -> None:
        full = self._book.settle(part, used, answered=answered)
        if full is not None:
            self._say(self._hands.answer_empty(full))
        if part.grab.type not in self._rights:
            # It ended meanwhile, and this grab was not among the rest.
            self._pass_on(part.grab.type)

    async def _dispatch(
        self, grab: Grab, shard: str, jobs: Sequence[Claimed], *, more: bool
    ) -> None:
        links = sampled(job.traceparent for job in jobs) if self._tracing.enabled else ()
        attributes = {"jobmesh.shard": shard, "jobmesh.type": grab.type}
        with self._tracing.start_span(
            "dispatch", "producer", parent="", links=links, attributes=attributes
        ) as span:
            span.set("jobmesh.count", len(jobs))
            await self._hands.dispatch(grab, jobs, stay=grab.type in self._rights, more=more)

    async def _take_back(self, shard: str, jobs: Sequence[Claimed]) -> bool:
        self._unsent.labels(jobs[0].type, shard).inc(len(jobs))
        try:
            await self._shards.store(shard).sweep([(job.id, job.fence) for job in jobs])
            return True
        except MeshError as error:
            extra = {"action": "take_back_failed", "shard": shard, "count": len(jobs)}
            log.warning("unsent jobs are left to the sweep: %s", error, extra=extra)
            return False

    # --- rights

    def _take_in(self, grab: Grab) -> None:
        full = self._book.put(grab)
        if full is not None:
            self._say(self._hands.answer_empty(full))

    def _begin(self, type_: str, seconds: float) -> None:
        if (ends := self._rights.pop(type_, None)) is not None:
            ends.cancel()
        loop = asyncio.get_running_loop()
        self._rights[type_] = loop.call_later(seconds, self._lapse, type_)

    def _lapse(self, type_: str) -> None:
        del self._rights[type_]
        for grab in self._book.take_out(type_):
            self._say(self._hands.answer_empty(grab))

    def _end(self, type_: str, to: str = "") -> None:
        if (ends := self._rights.pop(type_, None)) is not None:
            ends.cancel()
            self._pass_on(type_, to)

    def _pass_on(self, type_: str, to: str = "") -> None:
        for grab in self._book.take_out(type_):
            self._say(self._hands.pass_on(grab, to))

    def _say(self, word: Coroutine[Any, Any, None]) -> None:
        try:
            self._tasks.spawn(word, "loans", vital=False)
        except Draining:
            log.debug("grabs are lost with us", extra={"action": "grabs_lost"})
