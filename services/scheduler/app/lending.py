"""The lender: gives grabs that nothing waits for to whoever stores such jobs, and takes them back.

A grab is lent while no flag of its type is up and no claim of it is under way: nothing is known to
wait. The Orchestrator hands new jobs out as it stores them, and tells the worker to send its next
grab there, so that a stream of jobs passes us by. As soon as there is word of work that we have no
credit for, we recall what we have lent: a message there, and one back. The Orchestrator itself
sends it back with the nudge for what it could not hand out (`services.orchestrator.app.loans`).

Types with limits are not lent: their places are counted here. Nor are paused ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.credit import Grab
from services.mesh.runtime import Counts, Loop
from services.scheduler.app.board import DueBoard
from services.scheduler.app.limits import Limits
from services.scheduler.domain.lending import LoanPlan
from services.scheduler.domain.word import Word
from services.scheduler.ports import Broker

log = logging.getLogger(__name__)

#: Nobody waits for this tick; it only repairs a wake-up that a defect lost.
IDLE_SECONDS = 10.0


class Lender(Loop):
    """Acts on what it is told, at its next turn."""

    def __init__(
        self, board: DueBoard, broker: Broker, limits: Limits, clock: Clock, plan: LoanPlan
    ) -> None:
        super().__init__("lender", IDLE_SECONDS)
        self._board, self._broker = board, broker
        self._limits, self._clock, self._plan = limits, clock, plan
        self._offered: set[str] = set()
        self._wanted: set[str] = set()
        #: Whether a claim of the type is under way.
        self.is_claiming: Callable[[str], bool] = lambda type_: False

    def heard(self, word: Word) -> None:
        """A nudge came, perhaps from somebody to lend to."""
        if word.lend_at:
            for type_ in word.types:
                self._plan.heard(type_, word.lend_at, self._clock.monotonic())

    def asked(self, grab: Grab) -> None:
        """An Orchestrator passes a grab on, and would have it again."""
        self._plan.asked(grab.type, grab.lend_at, self._clock.monotonic())

    def offer(self, type_: str) -> None:
        """There is credit for the type, and perhaps nothing that waits for it."""
        if self._plan.borrower(type_, self._clock.monotonic()) is not None:
            self._offered.add(type_)
            self.nudge()

    def want(self, type_: str) -> None:
        """There is word of work, and no credit for it here."""
        if self._plan.recall(type_, self._clock.monotonic()):
            self._wanted.add(type_)
            self.nudge()

    def settings_changed(self, type_: str) -> None:
        """If it has limits now, nobody else may hand out its jobs."""
        if self._limits.settings(type_) is not None:
            self.want(type_)

    async def recall(self, type_: str) -> None:
        """Take the grabs of a type back, whoever lent them: it is paused."""
        self._offered.discard(type_)
        try:
            await self._broker.recall(type_)
        except DependencyUnavailable:
            # Loans end by themselves, in seconds.
            extra = {"action": "recall_failed", "type": type_}
            log.debug("could not recall grabs", extra=extra)

    async def run_once(self) -> Counts:
        """Take back what is wanted, and lend what is offered."""
        wanted, self._wanted = self._wanted, set()
        for type_ in wanted:
            await self.recall(type_)
        offered, self._offered = self._offered, set()
        lent = 0
        for type_ in offered:
            lent += await self._lend(type_)
        return {"recalled": len(wanted), "lent": lent}

    async def _lend(self, type_: str) -> int:
        now = self._clock.monotonic()
        at = self._plan.borrower(type_, now)
        if at is None or not self._is_quiet(type_):
            return 0
        grabs = self._board.book.take_out(type_)
        if grabs:
            self._plan.lent(type_, now)
        for grab in grabs:
            try:
                await self._broker.lend(grab, at, self._plan.rules.lasts)
            except DependencyUnavailable:
                # As if it had got lost on its way: its worker asks again.
                extra = {"action": "lend_failed", "worker_id": grab.worker_id}
                log.debug("could not lend a grab", extra=extra)
        return len(grabs)

    def _is_quiet(self, type_: str) -> bool:
        """Whether nothing of the type waits, as far as anybody knows."""
        board = self._board
        if not (self._broker.connected and self._limits.known and board.knows_pauses()):
            return False
        if type_ in board.paused or self._limits.settings(type_) is not None:
            return False
        return not board.flags.wants(type_) and not self.is_claiming(type_)
