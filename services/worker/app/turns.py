"""Where attempts wait that were asked for ahead of room (see `domain.foresight`).

They are locked, and run in their turn as soon as one of their type has ended. If what runs takes
longer than it used to, they are handed back after a moment: another worker may have room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.mesh.clock import Clock
from services.worker.app.run import Keeper
from services.worker.app.runner import Runner
from services.worker.domain.attempt import Attempt, Stop
from services.worker.domain.ending import HandedBack, ending_of_stop

#: Seconds that an attempt may wait.
PATIENCE = 1.0
NO_ROOM = HandedBack("no room")


class Owner(Keeper, Protocol):
    """An identity that takes attempts back which never ran."""

    def hand_back(self, attempt: Attempt, ending: HandedBack) -> None: ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    attempt: Attempt
    owner: Owner
    since: float


class Turns:
    """Between those who lock attempts, of whatever identity, and the runner.

    `capacity` says how many attempts of a type may run at once.
    """

    def __init__(self, runner: Runner, capacity: Callable[[str], int], clock: Clock) -> None:
        self._runner, self._capacity, self._clock = runner, capacity, clock
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def launch(self, attempt: Attempt, owner: Owner) -> None:
        """Run a locked attempt, now or in its turn."""
        type_ = attempt.type
        if self._running.get(type_, 0) < self._capacity(type_):
            self._start(attempt, owner)
            return
        waiting = _Waiting(attempt, owner, self._clock.monotonic())
        self._waiting.setdefault(type_, deque()).append(waiting)
        if self._timer is None:
            self._set_timer(PATIENCE)

    def ended(self, attempt: Attempt) -> None:
        """It runs no more, or never ran: the next one's turn."""
        if not attempt.runs:
            return
        attempt.runs = False
        self._running[attempt.type] -= 1
        if self._waiting:
            self._go_on(attempt.type)

    def stop(self, attempt: Attempt, why: Stop) -> bool:
        """Stop an attempt that runs or waits; False if it does neither."""
        if self._runner.stop(attempt, why):
            return True
        for one in self._waiting.get(attempt.type, ()):
            if one.attempt is attempt:
                self._waiting[attempt.type].remove(one)
                attempt.stop = why
                one.owner.ended(attempt, ending_of_stop(why, None), "")
                return True
        return False

    def hand_back(self, ending: HandedBack, owner: Owner | None = None) -> None:
        """Nobody of this identity, or none at all, shall start any more."""
        for line in self._waiting.values():
            for one in tuple(line):
                if owner is None or one.owner is owner:
                    line.remove(one)
                    one.owner.hand_back(one.attempt, ending)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, attempt: Attempt, owner: Owner) -> None:
        attempt.runs = True
        self._running[attempt.type] = self._running.get(attempt.type, 0) + 1
        self._runner.launch(attempt, owner)

    def _go_on(self, type_: str) -> None:
        line = self._waiting.get(type_)
        while line and self._running[type_] < self._capacity(type_):
            one = line.popleft()
            if one.attempt.total_left is not None:
                one.attempt.total_left -= self._clock.monotonic() - one.since
            self._start(one.attempt, one.owner)

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        self._timer = None
        ripe = self._clock.monotonic() - PATIENCE
        for line in self._waiting.values():
            while line and line[0].since <= ripe:
                one = line.popleft()
                one.owner.hand_back(one.attempt, NO_ROOM)
        oldest = min((line[0].since for line in self._waiting.values() if line), default=None)
        if oldest is not None:
            self._set_timer(max(0.01, oldest - ripe))
