"""Parked grabs: taken in, answered empty when nothing became due, sent elsewhere on drain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.credit import Grab
from services.mesh.runtime import Counts, Loop
from services.scheduler.app.board import DueBoard
from services.scheduler.app.measures import Measures
from services.scheduler.ports import Broker

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0


class Parking(Loop):
    """Looks after the grabs that wait."""

    def __init__(
        self,
        board: DueBoard,
        broker: Broker,
        clock: Clock,
        measures: Measures,
        wake: Callable[[], None],
    ) -> None:
        super().__init__("parking", CHECK_SECONDS)
        self._board, self._broker = board, broker
        self._clock, self._measures = clock, measures
        self._wake_claimer = wake
        #: Told of a type that there is credit and no word of work for.
        self.on_idle: Callable[[str], None] = lambda type_: None

    async def run_once(self) -> Counts:
        """Answer the grabs that waited too long, so that their workers grab anew."""
        expired = self._board.book.expire(self._clock.monotonic())
        await self._answer(expired, draining=False)
        book = self._board.book
        self._measures.parked({type_: book.credit_of(type_) for type_ in book.types()})
        return {"expired": len(expired)}

    def grabbed(self, grab: Grab) -> None:
        """A worker asks for work."""
        parked = self._board.book.park(grab, self._clock.monotonic())
        if parked and self._board.flags.wants(grab.type):
            self._wake_claimer()
        elif parked:
            self.on_idle(grab.type)

    def withdrawn(self, grab: Grab) -> None:
        """A worker has nobody left to run the type: what it asked for is not to be sent."""
        self._board.book.park(grab, self._clock.monotonic())

    def lost(self, worker_id: str) -> None:
        """A worker's lease is gone: nothing may be claimed for it any more."""
        dropped = self._board.book.drop_worker(worker_id)
        if dropped:
            extra = {"action": "grabs_dropped", "worker_id": worker_id, "count": dropped}
            log.info("dropped the grabs of a lost worker", extra=extra)

    async def close(self) -> None:
        """Send all parked grabs elsewhere."""
        await self._answer(self._board.book.clear(), draining=True)

    async def stop(self) -> None:
        # Once more: claims that were under way and brought nothing have put their grabs back.
        await self.close()
        await super().stop()

    async def _answer(self, grabs: Iterable[Grab], *, draining: bool) -> None:
        for grab in grabs:
            try:
                await self._broker.answer_empty(grab, draining=draining)
            except DependencyUnavailable:
                # The worker's own patience with a grab repairs this.
                extra = {"action": "answer_failed", "worker_id": grab.worker_id}
                log.debug("could not answer a grab", extra=extra)
