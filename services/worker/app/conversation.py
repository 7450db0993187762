"""The conversation with one attached executor: what is said, and what has become of its attempts.

What it says is not trusted. A word about an attempt that it does not have changes nothing, and is
answered with STALE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial

from services.mesh.errors import Overloaded, SlowConsumer
from services.mesh.jobs.model import Payload
from services.worker.app.run import CheckpointRefused
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, HandedBack, Snoozed, Verdict, executor_lost
from services.worker.domain.guests import Guest, Hold
from services.worker.ports import Observer, Returned

#: Messages that may wait for an executor that does not read them.
MAX_UNREAD = 20_000
#: Checkpoints of one attempt that may be under way at once.
MAX_CHECKPOINTS = 8

# --- what is said to an executor


@dataclass(frozen=True, slots=True)
class Handed:
    """Run this."""

    attempt: Attempt
    run_timeout: float | None
    input_url: str = ""
    output_url: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Stop that."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Leave:
    """Finish; expect no more."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the row said."""

    key: bytes
    fence: int
    verdict: Verdict


Message = Handed | Cancelled | Leave | Judged

# --- what an executor says


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The output was put where `output_url` said; size and SHA-256 as the executor knows them."""

    content_type: str
    size: int = 0
    sha256: bytes = b""


End = Returned | Uploaded | Failed | HandedBack | Snoozed


@dataclass(slots=True, eq=False)
class Visit:
    """One attempt in an executor's hands."""

    attempt: Attempt
    observer: Observer
    ended: asyncio.Future[End]
    checkpoints: set[asyncio.Task[None]] = field(default_factory=set)


class AttachedExecutor:
    """Our end of one attached executor."""

    def __init__(self, guest: Guest, on_change: Callable[[], None]) -> None:
        self.guest = guest
        #: Is called when it can take more or less than before.
        self._on_change = on_change
        self._visits: dict[Hold, Visit] = {}
        self._unread: list[Message] = []
        self._wake = asyncio.Event()
        #: Endings that the row has not answered yet.
        self._unjudged = 0
        self._over = False
        self._leaving = False

    # --- what it is told

    def tell(self, message: Message) -> None:
        self._unread.append(message)
        self._wake.set()

    def finish(self) -> None:
        """Tell it to leave; the conversation ends when it has nothing in hand."""
        if not self._leaving:
            self._leaving = True
            self.guest.credit = 0
            self.tell(Leave())

    def hang_up(self) -> None:
        """It says nothing more: neither do we."""
        self._over = True
        self._wake.set()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """What it is to be told, until one side has ended the conversation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._check_unread()
            unread, self._unread = self._unread, []
            for message in unread:
                yield message
            if self._over or (self._leaving and self._is_done):
                return

    def _check_unread(self) -> None:
        if len(self._unread) > MAX_UNREAD:
            raise SlowConsumer("the executor does not read what it is sent")

    @property
    def _is_done(self) -> bool:
        return not (self._visits or self._unjudged or self._unread)

    # --- what it says

    def give_credit(self, credit: int) -> None:
        self.guest.credit = 0 if self._leaving else credit
        self._on_change()

    def sign(self, hold: Hold) -> None:
        visit = self._visit(hold)
        if visit is not None:
            visit.observer.alive()

    def extended(self, hold: Hold, seconds: float) -> None:
        visit = self._visit(hold)
        if visit is not None:
            visit.observer.extended(seconds)

    def progressed(self, hold: Hold, done: float, total: float, message: str) -> None:
        visit = self._visit(hold)
        if visit is not None:
            visit.observer.progressed(done, total, message)

    def logged(self, hold: Hold, text: str, time_us: int) -> None:
        visit = self._visits.get(hold)
        if visit is not None:
            visit.observer.logged(text, time_us)

    def checkpointed(self, hold: Hold, state: Payload) -> None:
        visit = self._visit(hold)
        if visit is None:
            return
        if len(visit.checkpoints) >= MAX_CHECKPOINTS:
            raise Overloaded("checkpoints come faster than they can be stored: await the verdicts")
        work = self._store_checkpoint(visit, hold, state)
        task = asyncio.create_task(work, name="attached-checkpoint")
        visit.checkpoints.add(task)
        task.add_done_callback(visit.checkpoints.discard)

    async def _store_checkpoint(self, visit: Visit, hold: Hold, state: Payload) -> None:
        try:
            stored = await visit.observer.checkpointed(state)
            verdict = Verdict.COMMITTED if stored else Verdict.STALE
        except CheckpointRefused:
            verdict = Verdict.INVALID
        self.tell(Judged(*hold, verdict))

    def ended(self, hold: Hold, end: End) -> None:
        """How an attempt ended; the verdict follows when the row has given it."""
        visit = self._visit(hold)
        self._release(hold)
        if visit is not None:
            self._unjudged += 1
            visit.attempt.on_verdict = partial(self._judged, hold)
            visit.ended.set_result(end)

    def _judged(self, hold: Hold, verdict: Verdict) -> None:
        self._unjudged -= 1
        self.tell(Judged(*hold, verdict))

    def _visit(self, hold: Hold) -> Visit | None:
        """The attempt, if it has it; if not, it is told so."""
        visit = self._visits.get(hold)
        if visit is None or visit.ended.done():
            self._check_unread()  # of all it is told, only such answers have no other bound
            self.tell(Judged(*hold, Verdict.STALE))
            return None
        return visit

    def _release(self, hold: Hold) -> None:
        if hold in self.guest.in_hand:
            self.guest.in_hand.discard(hold)
            self._on_change()

    # --- an attempt

    async def run(self, handed: Handed, observer: Observer, grace: float) -> End:
        attempt = handed.attempt
        hold = (attempt.key, attempt.fence)
        visit = Visit(attempt, observer, asyncio.get_running_loop().create_future())
        self._visits[hold] = visit
        self.tell(handed)
        observer.started()
        try:
            return await asyncio.shield(visit.ended)
        except asyncio.CancelledError:
            self.tell(Cancelled(attempt))
            # It may clean up, and say when it is done; what it says of its end is too late.
            await asyncio.wait({visit.ended}, timeout=grace)
            raise
        finally:
            self._forget(hold, visit)

    def _forget(self, hold: Hold, visit: Visit) -> None:
        del self._visits[hold]
        for task in visit.checkpoints:
            task.cancel()
        if self._leaving:
            self._wake.set()

    def lose_all(self) -> None:
        """It is gone, and what it had with it."""
        self._over = True
        for visit in self._visits.values():
            if not visit.ended.done():
                visit.ended.set_result(executor_lost(self.guest.name))
        self.guest.in_hand.clear()
