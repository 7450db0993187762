"""Asks schedulers for work of one type."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from services.mesh.clock import Clock
from services.mesh.errors import MeshError
from services.worker.domain.grabbing import Ask, GrabPlan
from services.worker.ports import WorkSource

log = logging.getLogger(__name__)

#: How long grabs go to a scheduler that has called. One that froze keeps its place in the queue
#: group until the broker gives it up, and would be sent every other grab until then.
STAY_SECONDS = 5.0


class Grabber:
    """Keeps one grab outstanding whenever there is room. The plan decides; this acts and waits.

    `spare` says how many attempts there is room for now, less those that wait for room; None while
    the worker drains or may not trust its lease. Whoever changes that calls `wake`.
    """

    def __init__(
        self,
        type_: str,
        plan: GrabPlan,
        source: WorkSource,
        spare: Callable[[], int | None],
        clock: Clock,
    ) -> None:
        self.type = type_
        self._plan = plan
        self._source = source
        self._spare = spare
        self._clock = clock
        self._wake = asyncio.Event()
        #: Where grabs go while the call of a scheduler is fresh.
        self._at, self._at_until = "", 0.0
        #: Where the next grab goes, since the last one was answered with new jobs there.
        self._next_at = ""
        #: The newest grab that was taken back, with all before it.
        self._withdrawn_no = 0
        self._withdrawing = False

    def wake(self) -> None:
        """There may be room now. Cheap: while an answer is awaited it changes nothing."""
        if not self._plan.is_outstanding:
            self._wake.set()

    def ended(self) -> None:
        """A handler of the type has ended."""
        self._plan.ended()

    def foresee_nothing(self) -> None:
        self._plan.foresee_nothing()

    def answered(self, grab_no: int, next_at: str = "") -> None:
        """`next_at`: where the next grab is best sent; empty: to any scheduler."""
        self._next_at = next_at
        self._plan.answered(grab_no)
        self._wake.set()

    def heard(self, grab_no: int, count: int) -> None:
        """A part of what the grab may bring came; it goes on."""
        self._plan.heard(grab_no, count, self._clock.monotonic())

    def refused(self, grab_no: int) -> None:
        self._at = self._next_at = ""
        self._plan.refused(grab_no, self._clock.monotonic())
        self._wake.set()

    def give_up(self) -> None:
        """The outstanding grab is believed lost, with the scheduler or broker that had it."""
        self._next_at = ""
        self._plan.give_up()
        self._wake.set()

    def called(self, at: str) -> None:
        """A scheduler has work that nobody with room takes: so it has not got our grab."""
        now = self._clock.monotonic()
        if self._plan.called(now):
            self._at, self._at_until, self._next_at = at, now + STAY_SECONDS, ""
        # Without a grab out as well: should it sleep on room that it was not told of, it wakes.
        self.wake()

    def withdraw(self) -> None:
        """Nobody is left to run the type, or the worker takes nothing more: what grabs bring,
        wherever they wait, would be handed back.
        """
        if self._plan.grab_no > self._withdrawn_no:
            self._withdrawing = True
            self._wake.set()

    async def run(self) -> None:
        await self._source.listen_for_calls(self.type)
        while True:
            self._wake.clear()
            if self._withdrawing:
                await self._withdraw()
            elif self._plan.asks_too_much(self._spare(), self._clock.monotonic()):
                await self._take_back(self._plan.grab_no)
            step = self._plan.next_step(self._spare(), self._clock.monotonic())
            if isinstance(step, Ask):
                await self._ask(step)
            else:
                await self._rest(step.until)

    async def _ask(self, ask: Ask) -> None:
        called_to = self._at if self._clock.monotonic() < self._at_until else ""
        at, self._next_at = self._next_at or called_to, ""
        try:
            await self._source.grab(self.type, ask.credit, ask.grab_no, at, waits=ask.waits)
        except MeshError as error:
            extra = {"action": "grab_failed", "type": self.type, "error": str(error)}
            log.debug("cannot grab", extra=extra)
            self._plan.refused(ask.grab_no, self._clock.monotonic())

    async def _withdraw(self) -> None:
        self._withdrawing, self._withdrawn_no = False, self._plan.grab_no
        self._plan.give_up()
        await self._take_back(self._withdrawn_no)

    async def _take_back(self, grab_no: int) -> None:
        try:
            await self._source.withdraw(self.type, grab_no)
        except MeshError as error:
            extra = {"action": "withdraw_failed", "type": self.type, "error": str(error)}
            log.debug("cannot take a grab back", extra=extra)

    async def _rest(self, until: float | None) -> None:
        if until is None:
            await self._wake.wait()
            return
        delay = max(0.0, until - self._clock.monotonic())
        timer = asyncio.get_running_loop().call_later(delay, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()


class Board:
    """The grabbers at work, of whatever identity: room is shared by all of them."""

    def __init__(self) -> None:
        self._by_type: dict[str, list[Grabber]] = {}

    def add(self, grabber: Grabber) -> None:
        self._by_type.setdefault(grabber.type, []).append(grabber)

    def remove(self, grabber: Grabber) -> None:
        self._by_type[grabber.type].remove(grabber)

    def wake(self, type_: str) -> None:
        """There may be room for the type."""
        for grabber in self._by_type.get(type_, ()):
            grabber.wake()

    def withdraw(self, type_: str) -> None:
        """Nobody is left to run the type."""
        for grabber in self._by_type.get(type_, ()):
            grabber.withdraw()

    def wake_all(self) -> None:
        """There may be room for any type."""
        for type_ in self._by_type:
            self.wake(type_)
