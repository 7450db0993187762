"""Puts that wait for a worker's room, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.mesh.clock import Clock
from services.mesh.telemetry.metrics import Metrics
from services.orchestrator.domain.lent import Part
from services.orchestrator.domain.shortage import Shortages

#: Nobody waits for longer than this, in seconds, however the line moves: those behind may be of
#: other types.
LONGEST = 0.4


@dataclass(slots=True, eq=False)
class Waiter:
    """Jobs that stand in line."""

    jobs: int
    since: float
    turn: asyncio.Future[Part | None]

    def send(self, part: Part | None) -> None:
        if not self.turn.done():
            self.turn.set_result(part)


@dataclass(slots=True, eq=False)
class _Line:
    late: asyncio.TimerHandle
    """When nobody had a turn for too long."""
    since: float
    """When somebody had one, or the line began."""
    waiters: deque[Waiter] = field(default_factory=deque)


class RoomLines:
    """One line per type. `take` finds room for so many jobs, `give_back` gets what nobody wants.

    Who waits is patient as long as the line moves. If it does not, all of it go: the first who
    goes the usual way ends the right to hand anything out.
    """

    def __init__(
        self,
        take: Callable[[str, int], Part | None],
        give_back: Callable[[Part], None],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._take, self._give_back, self._clock = take, give_back, clock
        self._shortages = Shortages()
        self._lines: dict[str, _Line] = {}
        self._waits = metrics.counter(
            "room_waits", "Puts that waited for a worker's room, by what came.", ("came",)
        )

    def patience(self, type_: str, jobs: int, *, has_right: bool) -> float:
        """How long so many should wait in line for room, or for the right; 0: not at all."""
        now = self._clock.monotonic()
        return self._shortages.patience(type_, jobs, now, has_right=has_right)

    def has(self, type_: str) -> bool:
        """Whether somebody waits, who is not to be overtaken."""
        return type_ in self._lines

    def wanted(self, type_: str) -> int:
        """How much room the first one waits for; 0: nobody does."""
        line = self._lines.get(type_)
        waiters = () if line is None else line.waiters
        return next((one.jobs for one in waiters if not one.turn.done()), 0)

    def join(self, type_: str, jobs: int, seconds: float) -> Waiter:
        """Stand in line for so many jobs; so long may it stand still. To be followed by `turn`."""
        now = self._clock.monotonic()
        waiter = Waiter(jobs, now, asyncio.get_running_loop().create_future())
        line = self._lines.get(type_)
        if line is None:
            line = self._lines[type_] = _Line(self._timer(type_, seconds), now)
        line.waiters.append(waiter)
        return waiter

    async def turn(self, type_: str, waiter: Waiter) -> Part | None:
        """The room, when it is their turn; None: there was none in time."""
        try:
            part = await waiter.turn
        except asyncio.CancelledError:
            self._leave(type_, waiter)
            raise
        self._waits.labels("none" if part is None else "room").inc()
        return part

    def serve(self, type_: str) -> None:
        """There may be room: for the first, and for those behind it only then."""
        line = self._lines.get(type_)
        if line is None:
            return
        while line.waiters:
            if line.waiters[0].turn.done():  # its caller went away a moment ago
                line.waiters.popleft()
                continue
            part = self._take(type_, line.waiters[0].jobs)
            if part is None:
                return
            line.waiters.popleft().send(part)
            now = self._clock.monotonic()
            self._shortages.ended(type_, now - line.since, now)
            self.wait_on(type_)
        if type_ in self._lines:
            self._remove(type_)

    def wait_on(self, type_: str) -> None:
        """Who waits may do so as long again: somebody had a turn, or the right is there."""
        line = self._lines.get(type_)
        if line is None or not line.waiters:
            return
        line.since = now = self._clock.monotonic()
        patience = self.patience(type_, line.waiters[0].jobs, has_right=True)
        if not patience:  # by what was just learned
            self.dismiss(type_)
            return
        line.late.cancel()
        line.late = self._timer(type_, min(patience, line.waiters[0].since + LONGEST - now))

    def dismiss(self, type_: str) -> None:
        """There will be none."""
        if type_ in self._lines:
            for waiter in self._remove(type_).waiters:
                waiter.send(None)

    def dismiss_all(self) -> None:
        """There will be none of any type."""
        for type_ in list(self._lines):
            self.dismiss(type_)

    def give_up(self, type_: str) -> None:
        """Waiting does more harm than good."""
        self._shortages.in_vain(type_, self._clock.monotonic())
        self.dismiss(type_)

    def _timer(self, type_: str, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.give_up, type_)

    def _remove(self, type_: str) -> _Line:
        line = self._lines.pop(type_)
        line.late.cancel()
        return line

    def _leave(self, type_: str, waiter: Waiter) -> None:
        """Its caller went away."""
        line = self._lines.get(type_)
        if line is not None and waiter in line.waiters:
            line.waiters.remove(waiter)
            self.serve(type_)
        elif not waiter.turn.cancelled() and (part := waiter.turn.result()) is not None:
            self._give_back(part)  # its turn came at that very moment
