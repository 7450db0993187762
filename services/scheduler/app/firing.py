"""The schedule firer of one shard: the next runs of recurring schedules.

It goes by an alarm, set to when the shard's next schedule wants to be looked at: readings of the
shard tell that every few seconds, and a nudge tells of a new one. Runs are made a moment ahead of
their time, half of which the alarm leaves: so those of many schedules are made together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from math import inf

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, MeshError
from services.mesh.jobs.model import JobEvent
from services.mesh.runtime import Counts
from services.mesh.store.answers import CancelResult
from services.scheduler.app.alarm import Alarm
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.domain.times import micros
from services.scheduler.ports import Broker

#: Less than claims look back for certain (`depth.margin`).
LONG = timedelta(seconds=0.35)
#: Schedules fired in one transaction.
BATCH = 100
#: Words that are kept apart until the next reading; of more, the earliest counts.
MOST_HEARD = 100
#: Transactions in a row: what is made up for after hours must not keep the slot from being read.
MOST_PER_PASS = 5


class ScheduleFirer:
    """Makes one job per nominal time; the shard sees to it that two schedulers make only one."""

    def __init__(
        self,
        shard: str,
        shards: Shards,
        board: DueBoard,
        broker: Broker,
        measures: Measures,
        clock: Clock,
        ahead: float,
        stored: Callable[[], None],
    ) -> None:
        """Jobs are made up to `ahead` seconds before their time, so that the slot has them when it
        comes; `stored` is told when schedules were moved on.
        """
        self.shard = shard
        self._shards, self._board = shards, board
        self._broker, self._measures, self._clock = broker, measures, clock
        self._ahead, self._stored = timedelta(seconds=ahead), stored
        self._lead_us = round(ahead / 2 * 1e6)
        self._times = shards.clocks[shard]
        self._next_us: int | None = None
        #: When to ring: by the local clock, and by the shard's, if it was set by that.
        self._ring_at = inf
        self._ring_us: int | None = None
        #: When word came, and of what time: as far as no reading was asked for since.
        self._heard: list[tuple[float, int]] = []
        #: When the newest reading was asked for.
        self._asked = -inf
        #: Rings when there is something to fire.
        self.alarm = Alarm(lambda: None)
        # Claims read the clock, too: after a slow first reading nothing must wait for the next.
        self._times.on_closer(self._set_anew)

    # --- when

    @property
    def is_due(self) -> bool:
        return self._ring_at <= self._clock.monotonic()

    def seen(self, next_time: datetime | None, asked: float) -> None:
        """A reading, sent at this local time, says when the next schedule wants to be looked at.
        What was heard of since then may not be in it. Readings may overtake each other: one that
        was asked for earlier than another has nothing to say.
        """
        if asked < self._asked:
            return
        self._asked = asked
        self.forget()
        if next_time is not None:
            self._expect(micros(next_time))
        self._heard = [(at, next_us) for at, next_us in self._heard if at >= asked]
        for _, next_us in self._heard:
            self._expect(next_us)

    def heard(self, next_us: int) -> None:
        """Word came of a schedule that wants to be looked at then, by the shard's clock."""
        self._heard.append((self._clock.monotonic(), next_us))
        if len(self._heard) > MOST_HEARD:
            times, wanted = zip(*self._heard, strict=True)
            self._heard = [(max(times), min(wanted))]
        self._expect(next_us)

    def _expect(self, next_us: int) -> None:
        if self._times.known and (self._next_us is None or next_us < self._next_us):
            self._next_us = next_us
            self._ring_by(next_us - self._lead_us)

    def forget(self) -> None:
        """Nothing is known, or another scheduler looks after the shard now."""
        self._next_us, self._ring_at, self._ring_us = None, inf, None
        self.alarm.clear()

    def _ring_by(self, shard_us: int) -> None:
        self._ring(self._times.local(shard_us))
        self._ring_us = shard_us

    def _set_anew(self) -> None:
        """The shard's clock is known better."""
        if self._ring_us is not None:
            self._ring_by(self._ring_us)

    def _ring_now(self) -> None:
        self._ring(self._clock.monotonic())

    def _ring(self, at: float) -> None:
        self._ring_at, self._ring_us = at, None
        self.alarm.set(max(0.0, at - self._clock.monotonic()) + 0.001)

    def _nothing_moved(self, expected_us: int | None) -> None:
        """A schedule that follows its runs is not looked at ahead: come again at its time. If that
        has passed, another scheduler has it in hand; the next reading tells.
        """
        if expected_us is not None:
            due = self._times.local(expected_us)
            sooner = self._next_us is not None and self._next_us <= expected_us
            if due > self._clock.monotonic() and not sooner:
                self._next_us = expected_us
                self._ring_by(expected_us)

    # --- what

    async def run_once(self) -> Counts:
        """Fire every schedule whose time has come."""
        try:
            return await self._fire()
        except MeshError:
            self._ring_now()  # the rounds rest a while before they hear it
            raise

    async def _fire(self) -> Counts:
        fired = missed = moved = 0
        expected_us = self._next_us
        self.forget()
        for _ in range(MOST_PER_PASS):
            began = self._clock.monotonic()
            answer = await self._shards.ask(
                self.shard, lambda store: store.fire_due_schedules(BATCH, self._ahead)
            )
            if answer.events:
                # Those that are ahead of their time have a timer when the slot is read again.
                self._tell_due(answer.events, self._clock.monotonic() - began)
                with suppress(DependencyUnavailable):
                    await self._broker.hint(self.shard, answer.events)
            await self._stop(answer.cancelled)
            fired += answer.fired
            missed += answer.missed
            moved += answer.moved
            if not answer.more:
                break
        else:
            self._ring_now()  # go on when the shard's other duties had a turn
        if moved:
            self._stored()
        else:
            self._nothing_moved(expected_us)
        if fired or missed:
            self._measures.fired(self.shard, fired, missed)
        return {"fired": fired, "missed": missed}

    def _tell_due(self, events: Sequence[JobEvent], took: float) -> None:
        """Runs that are made up for have been due for long: claims may begin behind them. So may
        they if the firing took long: nobody saw its runs before it was committed.
        """
        lateness = [(e.type, e.time - e.due_time) for e in events if e.due_time is not None]
        unseen = timedelta(seconds=took)
        long = {type_ for type_, late in lateness if late + unseen > LONG}
        if lately := {type_ for type_, late in lateness if late >= timedelta(0)} - long:
            self._board.found(self.shard, lately)
        if long:
            self._board.found(self.shard, long, long_due=True)

    async def _stop(self, cancelled: Sequence[CancelResult]) -> None:
        """Runs that had to make way: tell their workers. Lost, their reports are refused."""
        for result in cancelled:
            if result.worker_id:
                with suppress(DependencyUnavailable):
                    await self._broker.stop(result.worker_id, result.job_id, result.fence)
