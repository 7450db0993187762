"""The caller: asks the workers for room when work stays undone for want of it.

A grab is parked with one scheduler. If that one is killed, frozen or cut off, the room it was
offered is out of everybody's reach until its lease is gone or the workers' patience has ended: jobs
wait, workers idle. The same goes for an answer that got lost on its way. Nobody can see that a grab
is lost; but every scheduler hears of due work, and can see that it stays due. So a scheduler that
has word of work and no credit for it looks at the shard half a second later. If jobs of the type
have been due for a while, no other scheduler has room for them either, or it would have claimed
them: it calls the workers of the type, and those whose grab has been out for long send a new one,
straight to the caller.

What that costs. At rest: nothing, since only word of work leads to a look. While others serve the
type, which they say: nothing; if they do not: at most two looks a second, fewer where they are slow
(`looks`). While all workers are busy:
the same, and a call now and then that nobody answers, since whoever has no room has no grab out.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from datetime import timedelta

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, MeshError
from services.mesh.runtime import Counts, Loop
from services.scheduler.app.alarm import Alarm
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.domain.calls import CallPlan
from services.scheduler.domain.looks import LookRules, Looks
from services.scheduler.ports import Broker

log = logging.getLogger(__name__)

#: Nobody waits for this tick; it only repairs a wake-up that a defect lost.
IDLE_SECONDS = 10.0
#: From word of work without credit to the look.
LOOK_SECONDS = 0.5
#: Alarms are as exact as the loop's clock: one that rings this early is in time.
SLACK = 0.01
#: Work that has been due for so long is served by nobody: with credit a claim takes milliseconds.
LATE = timedelta(seconds=0.3)


class Caller(Loop):
    """Looks only at what this scheduler has word of, and has no credit for."""

    def __init__(
        self, board: DueBoard, shards: Shards, broker: Broker, clock: Clock, measures: Measures
    ) -> None:
        super().__init__("caller", IDLE_SECONDS)
        self._board, self._shards, self._broker = board, shards, broker
        self._clock, self._measures = clock, measures
        self._alarm = Alarm(self.nudge)
        self._plan = CallPlan()
        self._looks: defaultdict[str, Looks] = defaultdict(lambda: Looks(LookRules()))
        #: Flags, by their marks, behind which a look found nothing due: others have served them.
        self._served: dict[tuple[str, str], int] = {}

    def unserved(self) -> None:
        """There is word of work, and no credit for it here."""
        self._alarm.set(LOOK_SECONDS)

    async def stop(self) -> None:
        self._alarm.clear()
        await super().stop()

    async def run_once(self) -> Counts:
        """Call for what stays undone."""
        unserved = self._unserved(self._clock.monotonic())
        late: set[str] = set()
        for shard, marks in unserved.items():
            late |= await self._late(shard, marks)
        called = self._plan.due(late, self._clock.monotonic())
        for type_ in called:
            await self._call(type_)
        if unserved:
            wait = self._plan.wait(self._clock.monotonic())
            self._alarm.set(LOOK_SECONDS if wait is None else wait)
        return {"called": len(called)}

    def _unserved(self, now: float) -> dict[str, dict[str, int]]:
        """By shard and type, the marks of flags that are up for want of credit. Those that went up
        only now, or were served by others, have a look of their own when it is time.
        """
        found: dict[str, dict[str, int]] = {}
        served: dict[tuple[str, str], int] = {}
        board, flags = self._board, self._board.flags
        for type_ in flags.types():
            if type_ in board.paused or board.has_credit(type_):
                continue
            for shard in flags.shards(type_):
                mark = flags.mark(type_, shard) or 0
                if self._served.get((type_, shard)) == mark:
                    served[type_, shard] = mark
                elif (early := flags.since(type_, shard) + LOOK_SECONDS - SLACK - now) > 0:
                    self._alarm.set(early + SLACK)
                elif self._shards.gate(shard).open:
                    found.setdefault(shard, {})[type_] = mark
        self._served = served
        return found

    async def _late(self, shard: str, marks: dict[str, int]) -> set[str]:
        """Those of the types whose work has been due for long."""
        looks = self._looks[shard]
        if not looks.may(self._clock.monotonic()):
            return set()
        try:
            seen = await self._shards.ask(shard, lambda store: store.pulse(limit=1))
        except MeshError:
            return set()  # its gate is closed, and who opens it raises the flags; or we ask again
        looks.looked(self._clock.monotonic(), seen.took)
        since = dict(zip(seen.due_types, seen.due_since, strict=True))
        for type_, mark in marks.items():
            if type_ not in since:
                self._served[type_, shard] = mark
        return {t for t in marks if t in since and seen.slot.now - since[t] >= LATE}

    async def _call(self, type_: str) -> None:
        try:
            await self._broker.call(type_)
        except DependencyUnavailable:
            return  # the next look finds the work again
        self._measures.called(type_)
        log.info("called for workers", extra={"action": "workers_called", "type": type_})
