"""Puts that wait for a worker's room, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.orchestrator.domain.lent import Part


@dataclass(slots=True, eq=False)
class Waiter:
    """Jobs that stand in line."""

    jobs: int
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
        self, take: Callable[[str, int], Part | None], give_back: Callable[[Part], None]
    ) -> None:
        self._take, self._give_back = take, give_back
        self._lines: dict[str, _Line] = {}
        #: Told how long a line stood still before somebody had a turn; and which one does.
        self.on_turn: Callable[[str, float], None] = lambda type_, seconds: None
        self.on_late: Callable[[str], None] = lambda type_: None

    def has(self, type_: str) -> bool:
        """Whether somebody waits, who is not to be overtaken."""
        return type_ in self._lines

    def wanted(self, type_: str) -> int:
        """How much room the first one waits for; 0: nobody does."""
        line = self._lines.get(type_)
        return line.waiters[0].jobs if line is not None and line.waiters else 0

    def join(self, type_: str, jobs: int, seconds: float) -> Waiter:
        """Stand in line for so many jobs; so long may it stand still. To be followed by `turn`."""
        loop = asyncio.get_running_loop()
        waiter, now = Waiter(jobs, loop.create_future()), loop.time()
        line = self._lines.get(type_)
        if line is None:
            line = self._lines[type_] = _Line(self._timer(type_, seconds), now)
        line.waiters.append(waiter)
        return waiter

    async def turn(self, type_: str, waiter: Waiter) -> Part | None:
        """The room, when it is their turn; None: there was none in time."""
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            self._leave(type_, waiter)
            raise

    def serve(self, type_: str) -> None:
        """There may be room: for the first, and for those behind it only then."""
        line = self._lines.get(type_)
        if line is None:
            return
        now = asyncio.get_running_loop().time()
        while line.waiters:
            part = self._take(type_, line.waiters[0].jobs)
            if part is None:
                return
            line.waiters.popleft().send(part)
            self.on_turn(type_, now - line.since)
            line.since = now
        self._remove(type_)

    def rearm(self, type_: str, seconds: float) -> None:
        """From now on the line may stand still for so long."""
        line = self._lines.get(type_)
        if line is not None:
            line.late.cancel()
            line.late = self._timer(type_, seconds)
            line.since = asyncio.get_running_loop().time()

    def dismiss(self, type_: str) -> None:
        """There will be none."""
        if type_ in self._lines:
            for waiter in self._remove(type_).waiters:
                waiter.send(None)

    def dismiss_all(self) -> None:
        """There will be none of any type."""
        for type_ in list(self._lines):
            self.dismiss(type_)

    def _late(self, type_: str) -> None:
        self.on_late(type_)
        self.dismiss(type_)

    def _timer(self, type_: str, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._late, type_)

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
