"""Grabs on loan: new jobs that are handed to a worker by the statement that stores them.

The usual way of a job that is due at once leads from its put over a nudge to a scheduler, which
claims it for a worker that has asked for work: two messages, a process and a commit to disk later.
While nothing of a type waits, all that decides nothing: whoever asks first gets the job. So a
scheduler that has a worker's grab and nothing for it lends it to the Orchestrator that stored the
type's jobs lately. That one stores the next ones as DISPATCHED to the worker, and sends them there
when they are committed (docs/adr/0016).

A put takes the part of a grab that it needs, so that puts beside each other and right after each
other are all handed out (`domain.lent`). One that finds no room waits for a moment, if experience
says that there will be some (`domain.shortage`): a stream of batches is handed out, too, as fast as
workers run it (docs/adr/0019).

**A loan is a right to keep grabs of one type**, for seconds. With the jobs the worker is told to
send its next grab here, so that a steady stream passes no scheduler at all. The right ends

* when something of the type was stored, or came back, that is not handed out: it is in the queue,
  schedulers were nudged, and they need the room;
* when a scheduler recalls it, because it has work of the type and no credit;
* when the type is paused;
* by itself. Then grabs are answered empty, go to a scheduler again, and are lent again if nothing
  waits. Before that, one is passed on with the wish to have it again: who lends it renews the
  right.

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
from dataclasses import dataclass
from math import inf
from typing import Any

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, Draining, MeshError
from services.mesh.jobs.alike import AlikeClaimed
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed, NewJob
from services.mesh.runtime import Tasks
from services.mesh.store.answers import PutAnswer
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing, sampled
from services.orchestrator.app.room import RoomLines
from services.orchestrator.app.shards import Shards
from services.orchestrator.domain.handing import dispatches, handed_type
from services.orchestrator.domain.lent import LentBook, Part
from services.orchestrator.ports import Hands

log = logging.getLogger(__name__)

#: The part of its time after which a right that is used is renewed.
RENEWS_AT = 0.4
#: Schedulers lend for so long after the last nudge, and longer.
LENT_AFTER = 30.0
MOST_NUDGES = 10_000
#: How long a grab with too little room for those who wait may yet be of use to others.
ASK_ANEW_SECONDS = 0.004


@dataclass(slots=True)
class _Right:
    """To keep the grabs of a type."""

    ends: asyncio.TimerHandle
    renews_at: float
    #: Until workers are asked anew how much room they have.
    asks: asyncio.TimerHandle | None = None

    def is_old(self, now: float) -> bool:
        return now >= self.renews_at


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
        self._lines = RoomLines(self._room_of, self.give_back, clock, metrics)
        #: Whether a type is paused, or has limits, whose places are counted by schedulers: they do
        #: not lend it; but may have done so a moment ago.
        self.is_barred: Callable[[str], bool] = lambda type_: False
        self._rights: dict[str, _Right] = {}
        #: By type, when schedulers were told last of work of ours, and so whom to lend to.
        self._nudges: dict[str, float] = {}
        self._is_open = True
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
        right = self._rights.get(grab.type)
        if right is None:
            self._pass_on(grab.type)
        elif not self._renews(right, grab):
            self._serve(grab.type)

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
        self._lines.dismiss(type_)
        self._end(type_)

    def nudged(self, types: Iterable[str], lends: bool = True) -> None:
        """Schedulers were told of work of these types, and need the room; and whom to lend to."""
        now = self._now()
        if len(self._nudges) > MOST_NUDGES:
            self._nudges.clear()
        for type_ in types:
            if lends:
                self._nudges[type_] = now
            self._end(type_)

    def close(self) -> None:
        """End all rights, and hope for no more."""
        self._is_open = False
        self._lines.dismiss_all()
        for type_ in list(self._rights):
            self._end(type_)

    # --- new jobs

    async def room(self, jobs: Sequence[NewJob]) -> Part | None:
        """The room of a worker for all of these jobs, if they may be handed out; after a moment, if
        it is to be had then.
        """
        type_ = self._free_type(jobs)
        if type_ is None:
            return None
        has_right = type_ in self._rights
        part = self._take(type_, len(jobs)) if has_right else None
        if part is not None or not self._may_come(type_, len(jobs)):
            return part
        seconds = self._lines.patience(type_, len(jobs), has_right=has_right)
        if not seconds:
            return None
        waiter = self._lines.join(type_, len(jobs), seconds)
        self._serve(type_)
        return await self._lines.turn(type_, waiter)

    def take(self, jobs: Sequence[NewJob]) -> Part | None:
        """The room there is for them now."""
        type_ = self._free_type(jobs)
        return None if type_ not in self._rights else self._take(type_, len(jobs))

    def _free_type(self, jobs: Sequence[NewJob]) -> str | None:
        """The type of jobs that may be handed out, if there is room and a right to."""
        if not (self._rights or self._nudges) or not (self._is_open and self._hands.connected):
            return None
        type_ = handed_type(jobs)
        return None if type_ is None or self.is_barred(type_) else type_

    def _take(self, type_: str, count: int) -> Part | None:
        return None if self._lines.has(type_) else self._book.take(type_, count)

    def _room_of(self, type_: str, count: int) -> Part | None:
        """For who waits. Without a right what puts have left of older grabs is not to be used."""
        return self._book.take(type_, count) if type_ in self._rights else None

    def _may_come(self, type_: str, count: int) -> bool:
        """Whether there may be so much room soon: workers had it; or, without a right, schedulers
        know where to lend to.
        """
        if type_ in self._rights:
            return self._book.expects(type_, count)
        return self._now() < self._nudges.get(type_, -inf) + LENT_AFTER

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
        stay = part.grab.type in self._rights or self._book.is_shared(part)
        answered = not more and self._book.answer(part, stays=stay)
        used = len(handed)
        try:
            await self._dispatch(part.grab, shard, handed, stay=stay, more=more)
        except DependencyUnavailable:
            used = 0
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
            self._ask_again(full)
        if part.grab.type in self._rights:
            self._serve(part.grab.type)
        else:
            # It ended meanwhile, and this grab was not among the rest.
            self._pass_on(part.grab.type)

    async def _dispatch(
        self, grab: Grab, shard: str, jobs: Sequence[Claimed], *, stay: bool, more: bool
    ) -> None:
        # Those in columns have one trace among them, and records of them are not made for that.
        told = [jobs.like] if isinstance(jobs, AlikeClaimed) else jobs
        links = sampled(job.traceparent for job in told) if self._tracing.enabled else ()
        attributes = {"jobmesh.shard": shard, "jobmesh.type": grab.type}
        with self._tracing.start_span(
            "dispatch", "producer", parent="", links=links, attributes=attributes
        ) as span:
            span.set("jobmesh.count", len(jobs))
            await self._hands.dispatch(grab, jobs, stay=stay, more=more)

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
            self._ask_again(full)

    def _ask_again(self, grab: Grab) -> None:
        """Its worker should say anew how much room it has."""
        self._say(self._hands.answer_empty(grab, stay=grab.type in self._rights))

    def _renews(self, right: _Right, grab: Grab) -> bool:
        """Whether this grab is passed on, for a scheduler to say that nothing waits. Before it is
        used: in a steady stream each is, at once.
        """
        if not right.is_old(self._now()):
            return False
        given = self._book.take_out_of(grab)
        if given is None:
            return False
        right.renews_at = inf
        self._say(self._hands.pass_on(given, back=True))
        return True

    def _serve(self, type_: str) -> None:
        """There may be room."""
        self._lines.serve(type_)
        right = self._rights.get(type_)
        if right is not None and right.asks is None and self._lines.has(type_):
            loop = asyncio.get_running_loop()
            right.asks = loop.call_later(ASK_ANEW_SECONDS, self._ask_anew, type_)

    def _ask_anew(self, type_: str) -> None:
        """Grabs that are here have too little room for those who wait: by now there may be more."""
        if (right := self._rights.get(type_)) is None:
            return
        right.asks = None
        wanted = self._lines.wanted(type_)
        if wanted and self._book.is_tired(type_):
            self._lines.give_up(type_)  # a worker stands idle, for whom claims would find work
        elif wanted:
            for grab in self._book.answer_scanty(type_, wanted):
                self._ask_again(grab)

    def _begin(self, type_: str, seconds: float) -> None:
        if (right := self._rights.pop(type_, None)) is not None:
            right.ends.cancel()
        loop = asyncio.get_running_loop()
        ends = loop.call_later(seconds, self._lapse, type_)
        self._rights[type_] = _Right(ends, self._now() + RENEWS_AT * seconds)
        self._lines.wait_on(type_)  # who waited for the right waits for room now
        for grab in self._book.answer_old(type_):
            self._ask_again(grab)

    def _lapse(self, type_: str) -> None:
        del self._rights[type_]
        self._lines.dismiss(type_)
        for grab in self._book.take_out(type_):
            self._say(self._hands.answer_empty(grab))

    def _end(self, type_: str, to: str = "") -> None:
        if (right := self._rights.pop(type_, None)) is not None:
            right.ends.cancel()
            self._lines.dismiss(type_)
            self._pass_on(type_, to)

    def _now(self) -> float:
        return self._clock.monotonic()

    def _pass_on(self, type_: str, to: str = "") -> None:
        for grab in self._book.take_out(type_):
            self._say(self._hands.pass_on(grab, to))

    def _say(self, word: Coroutine[Any, Any, None]) -> None:
        try:
            self._tasks.spawn(word, "loans", vital=False)
        except Draining:
            log.debug("grabs are lost with us", extra={"action": "grabs_lost"})
