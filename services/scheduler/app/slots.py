"""The slot grabber of one shard: jobs that will be due, fired each at its time.

At least twice per width of a slot it reads the due times of the slot that begins at the shard's
now, and sets a timer for each; so whatever is stored at least half a slot ahead of its time is
always seen. What is stored later than that is announced by a nudge that says when it is due.

The statement that reads the slot tells all else that goes by time, so that a shard at rest costs
one statement every few seconds: which types are due (everything overdue is found by this: lost
nudges, times that fell between two slots, times that passed while the shard was away), and what the
other duties wait for, which is passed on. Where that has become slow it is left out now and then
(`looks`); the slot never is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from services.mesh.clock import Clock
from services.mesh.errors import DeadlineExceeded, Draining, MeshError
from services.mesh.runtime import Counts, Tally, Tasks
from services.mesh.store.answers import Pulse, Slot
from services.scheduler.app.alarm import Alarm
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.domain.looks import LookRules, Looks
from services.scheduler.domain.rereading import Rereading, RereadRules
from services.scheduler.domain.timers import DueTimers
from services.scheduler.domain.times import micros, time_of

log = logging.getLogger(__name__)

#: Claims may not go back so far (see `depth`); if they do, saying so costs a look.
LONG_DUE = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class SlotRules:
    """How slots are read. Times in seconds."""

    width: float = 4.0
    dispatch: float = 4.0
    """A dispatch that nobody locked for so long is lost."""
    lead: float = 0.0
    """How long before its time a timer goes off."""
    limit: int = 5_000
    """Due times read at once; more are read with the next slot."""
    rereading: RereadRules = field(default_factory=RereadRules)
    looks: LookRules = field(default_factory=LookRules)


class _Reading(NamedTuple):
    """When a slot was asked for, how wide, and what came of it."""

    sent: float
    width: timedelta
    seen: Pulse


class SlotGrabber:
    """The coming slot of one shard."""

    def __init__(
        self,
        shard: str,
        shards: Shards,
        board: DueBoard,
        tasks: Tasks,
        clock: Clock,
        measures: Measures,
        rules: SlotRules | None = None,
    ) -> None:
        self.name = f"slots-{shard}"
        self.shard = shard
        self.slot_end: datetime | None = None
        #: What the last reading told, and when it was asked, by the local clock.
        self.seen: Pulse | None = None
        self.asked = 0.0
        #: Told of each reading.
        self.on_seen: Callable[[Pulse], None] = lambda seen: None
        self._shards, self._board = shards, board
        self._tasks, self._clock, self._measures = tasks, clock, measures
        self._rules = rules or SlotRules()
        self._times = shards.clocks[shard]
        self._lead_us = round(self._rules.lead * 1e6)
        self._timers = DueTimers()
        self._alarm = Alarm(self._fire)
        # Claims read the clock, too: after a slow first reading timers must not wait for the next.
        self._times.on_closer(self._set_alarm)
        self._again = Alarm(self._read_in_background)
        self._rereading = Rereading(self._rules.rereading)
        self._looks = Looks(self._rules.looks)
        self._since: float | None = None
        #: Timers that went off, for tests to wait on.
        self.fired = Tally()

    async def start(self) -> None:
        """Nothing to do: the rounds begin."""

    async def stop(self) -> None:
        self.forget()

    @property
    def waiting(self) -> int:
        """Due times that have not come yet."""
        return len(self._timers)

    def lag(self) -> float:
        """Seconds by which the end of the last slot lies in the past; 0 when all is well."""
        if self.slot_end is None or not self._times.known:
            return 0.0
        now = self._times.at(self._clock.monotonic())
        return max(0.0, (now - micros(self.slot_end)) / 1e6)

    # --- reading

    async def run_once(self) -> Counts:
        """Read the coming slot, and which types are due already."""
        since, self._since = self._since, None
        self._again.clear()
        began = self._clock.monotonic()
        try:
            sent, width, seen = await self._look(since, began)
        except BaseException:
            # What becomes due until the next reading would be in no slot.
            self._look_back(began if since is None else since)
            raise
        received = self._clock.monotonic()
        self._times.read(micros(seen.slot.now), sent, received)
        seen = self._noted(seen)
        self.seen, self.asked, self.slot_end = seen, sent, seen.slot.end
        self._measures.lag(self.shard, self.lag())
        # A claim that began while the slot was read may not have seen what stands in it.
        added = self._timers.add(_due_times(seen.slot), received)
        self._set_alarm()
        if seen.slot.end - seen.slot.start < width:
            # The limit was hit: read on when half of what was read has passed.
            self._again.set(max(0.01, (seen.slot.end - seen.slot.now).total_seconds() / 2))
        self._tell_due(seen)
        self.on_seen(seen)
        return {"grabbed": added, "due": len(seen.due_types)}

    async def _look(self, since: float | None, began: float) -> _Reading:
        """At everything, if that may be; where it takes too long, at the slot alone: jobs and
        schedules go on by that.
        """
        if self._looks.may(began):
            try:
                return await self._ask(since, deep=True)
            except DeadlineExceeded as error:
                self._looks.gave_up(self._clock.monotonic())
                log.warning("%s", error, extra={"action": "look_given_up", "shard": self.shard})
                since = began if since is None else since
        return await self._ask(since, deep=False)

    async def _ask(self, since: float | None, *, deep: bool) -> _Reading:
        sent = self._clock.monotonic()
        start, width = self._span(since, sent)
        limit, dispatch = self._rules.limit, timedelta(seconds=self._rules.dispatch)
        seen = await self._shards.ask(
            self.shard, lambda store: store.pulse(start, width, limit, dispatch, deep=deep)
        )
        return _Reading(sent, width, seen)

    def _noted(self, seen: Pulse) -> Pulse:
        """What was not looked for: jobs are in flight as before, or if it is not known; the rest
        waits to be seen.
        """
        if seen.deep:
            self._looks.looked(self._clock.monotonic(), seen.took)
            return seen
        return replace(seen, in_flight=self.seen is None or self.seen.in_flight)

    def _tell_due(self, seen: Pulse) -> None:
        """Types that have been due for so long that claims may begin behind them are said to be."""
        long = {
            type_
            for type_, since in zip(seen.due_types, seen.due_since, strict=True)
            if seen.slot.now - since > LONG_DUE
        }
        if lately := set(seen.due_types) - long:
            self._board.found(self.shard, lately)
        if long:
            self._board.found(self.shard, long, long_due=True)

    def expect(self, types: Collection[str], due_us: int) -> None:
        """Jobs were stored that are due then. If the slot that was read reaches so far, the next
        one would come too late for them.
        """
        if self.slot_end is None:
            # The first reading is under way, or about to be, and may have looked before.
            self.read_soon(self._clock.monotonic())
        elif due_us < micros(self.slot_end):
            self._timers.add(((type_, due_us) for type_ in types), self._clock.monotonic())
            self._set_alarm()

    def read_soon(self, since: float) -> None:
        """Read the slot again out of turn: something may have been stored that is due in it, and
        was not due yet at the local time `since`.
        """
        self._look_back(since)
        self._again.set(self._rereading.wait(self._clock.monotonic()))

    def covered(self, type_: str, until: datetime, began: float) -> None:
        """A claim that began at this local time took all of the type that is due until then."""
        self._timers.covered(type_, micros(until), began)

    def forget(self) -> None:
        """Another scheduler looks after the shard now, or the process ends."""
        self._again.clear()
        self._alarm.clear()
        self._timers.clear()
        self.slot_end = self.seen = None

    def _look_back(self, since: float) -> None:
        self._since = since if self._since is None else min(self._since, since)

    def _span(self, since: float | None, sent: float) -> tuple[datetime | None, timedelta]:
        """Where the slot begins, and its width: at the shard's now, unless we were asked to look
        further back, for what has become due since then would be in no slot. What is older than the
        last look at everything was found by that.
        """
        if since is None or not self._times.known:
            return None, timedelta(seconds=self._rules.width)
        since = max(since, sent - self._rules.looks.most)
        width = timedelta(seconds=self._rules.width + sent - since)
        return time_of(self._times.at(since)), width

    def _read_in_background(self) -> None:
        self._rereading.began(self._clock.monotonic())
        if self._shards.gate(self.shard).open:
            with suppress(Draining):
                self._tasks.spawn(self._try_read(), f"slot-{self.shard}", vital=False)

    async def _try_read(self) -> None:
        try:
            self._rereading.ended((await self.run_once())["grabbed"])
        except MeshError:
            return  # the next tick reads again, or the first after the gate has opened

    # --- firing

    def _set_alarm(self) -> None:
        due = self._timers.next()
        if due is not None:
            delay = self._times.local(due - self._lead_us) - self._clock.monotonic()
            # Loops round to the millisecond, some of them down; too early costs a second alarm.
            self._alarm.set(math.ceil(max(0.0, delay) * 1000) / 1000)

    def _fire(self) -> None:
        types = self._timers.pop(self._times.at(self._clock.monotonic()) + self._lead_us)
        if types:
            self._board.found(self.shard, types)
            self.fired.add(len(types))
        self._set_alarm()


def _due_times(slot: Slot) -> Iterator[tuple[str, int]]:
    return ((due.type, micros(due.due_time)) for due in slot.due_times)
