"""A tenure: the time a worker serves under one lease and one worker id.

Everything that was dispatched to an identity is reported by it, also after its lease is gone: the
row accepts a result from the worker it was dispatched to, for as long as nobody else took the job
up. So a tenure that lost its lease takes nothing new, but lives on until its attempts are settled,
beside the next one if need be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.mesh.clock import Clock
from services.mesh.errors import MeshError
from services.mesh.jobs.limits import owner_of
from services.mesh.lease.port import LeaseLost, LeaseState, PlaceWish
from services.mesh.runtime import Backoff, Tasks
from services.worker.app.grabber import Board, Grabber
from services.worker.app.reporter import Listener, Reporter
from services.worker.app.runner import Runner
from services.worker.app.turns import Owner, Turns
from services.worker.app.unlocker import Unlocker
from services.worker.domain.attempt import Attempt, Batch, Stop
from services.worker.domain.book import AttemptBook, Refused, Taken
from services.worker.domain.clocks import ShardClocks
from services.worker.domain.ending import (
    Ending,
    HandedBack,
    Progressed,
    Report,
    Snoozed,
    Succeeded,
    Verdict,
)
from services.worker.domain.grabbing import GrabPlan, GrabSettings
from services.worker.ports import (
    Broker,
    Dependencies,
    Inbox,
    Instruments,
    Orchestrators,
    Standing,
    WorkSource,
)

log = logging.getLogger(__name__)

LOCK_HELD = HandedBack("lock held", 1.0)
LIMIT_REACHED = HandedBack("limit reached", 0.2)
LEASE_LOST = HandedBack("lease lost")
#: By etcd's word alone: until the next renewal says so we ask for work, and it would be these jobs.
LEASE_UNKNOWN = HandedBack("lease lost", 1.0)
ETCD_AWAY = HandedBack("etcd away", 1.0)
DRAIN = HandedBack("drain")
#: Endings after which the job may start anywhere, at once or soon.
RUNS_AGAIN = (HandedBack, Snoozed)
LAST_SECONDS = 1.0
NO_SCHEDULER = Backoff(first=0.1, ceiling=2.0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all tenures of a worker share."""

    book: AttemptBook
    board: Board
    runner: Runner
    turns: Turns
    broker: Broker
    orchestrators: Orchestrators
    instruments: Instruments
    dependencies: Dependencies
    clock: Clock
    grabbing: GrabSettings


class Tenure(Owner, Inbox, Listener):
    """One identity at work. `taking` may be taken away; the rest goes on until it is closed."""

    def __init__(self, standing: Standing, around: Surroundings, on_death: Callable[[str], None]):
        self.standing = standing
        self._around = around
        self._book = around.book
        self._clocks = ShardClocks()
        self._taking = False
        self._is_current = True
        self._tasks = Tasks(on_death)
        self._reporter = Reporter(standing.worker_id, around.orchestrators, self)
        self._unlocker = Unlocker(self._give_back_locks)
        self._leaver = Unlocker(standing.places.give_back)
        self._grabbers: dict[str, Grabber] = {}
        self._source: WorkSource | None = None
        #: Attempts of this tenure from their arrival to their verdict.
        self._mine: set[Attempt] = set()
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def worker_id(self) -> str:
        return self.standing.worker_id

    # --- life

    async def begin(self) -> None:
        """Listen, register, ask for work, in this order: nothing comes before it can be heard."""
        self._source = await self._around.broker.join(self.worker_id, self)
        self._tasks.spawn(self._reporter.run(), f"reporter {self.worker_id}")
        self._tasks.spawn(self._unlocker.run(), f"unlocker {self.worker_id}")
        self._tasks.spawn(self._leaver.run(), f"leaver {self.worker_id}")
        await self.standing.announce()
        self.standing.lease.on_change(self._lease_changed)
        self._lease_changed(self.standing.lease.state)
        self._taking = True
        self._ask_for_all()

    async def offer(self) -> None:
        """What the worker serves has changed: say so, then ask for what is new."""
        await self.standing.announce()
        if self._taking:
            self._ask_for_all()

    def _ask_for_all(self) -> None:
        for type_, capacity in self._book.capacity.items():
            if type_ not in self._grabbers:
                self._ask_for(type_, capacity)

    def _ask_for(self, type_: str, capacity: int) -> None:
        assert self._source is not None
        is_lent = self._book.is_lent(type_)
        plan = GrabPlan(capacity, self._around.grabbing, NO_SCHEDULER.delay, is_lent=is_lent)
        grabber = Grabber(type_, plan, self._source, self._spare_of(type_), self._around.clock)
        self._grabbers[type_] = grabber
        self._around.board.add(grabber)
        self._tasks.spawn(grabber.run(), f"grabber {type_}")

    def stop_taking(self) -> None:
        """Take nothing more, nor what grabs that wait with schedulers would bring."""
        self._taking = False
        for grabber in self._grabbers.values():
            grabber.withdraw()
        self._around.turns.hand_back(DRAIN, self)

    def retire(self) -> None:
        """Another identity takes over: take nothing, and speak no more for the worker's health."""
        self._taking = False
        self._is_current = False
        for grabber in self._grabbers.values():
            self._around.board.remove(grabber)
        self._grabbers.clear()
        self._around.turns.hand_back(LEASE_LOST, self)

    async def settled(self) -> None:
        """Return when all its attempts have their verdicts and their locks are given back."""
        while True:
            await self._settled.wait()
            await self._reporter.idle()
            await self._unlocker.idle()
            await self._leaver.idle()
            if not self._mine:  # else one was dispatched to it meanwhile
                return

    async def close(self, listen: float = 0.0) -> None:
        """Give up the lease, then all connections. May be called twice.

        Schedulers drop our grabs when they see the lease go; what one sends before that, within
        `listen` seconds, is handed back instead of being lost.
        """
        self.retire()
        await self.standing.leave()
        if listen:
            await asyncio.sleep(listen)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.settled()
        if self._source is not None:
            await self._source.close()
        await self._tasks.stop()
        self._let_go()

    def _let_go(self) -> None:
        """Nobody is left to report what came too late. The sweep finds those jobs; here they must
        not take up the room of the next identity.
        """
        for attempt in tuple(self._mine):
            self._book.end(attempt)
            self._book.settle(attempt)
        if self._mine:
            self._around.board.wake_all()
        self._mine.clear()
        self._settled.set()

    def regrab(self) -> None:
        """Outstanding grabs may be lost: ask again."""
        for grabber in self._grabbers.values():
            grabber.give_up()

    def _spare_of(self, type_: str) -> Callable[[], int | None]:
        book = self._book

        def spare() -> int | None:
            # None while too much is unsettled, too: what runs will have room, and not be taken.
            may_take = self._taking and not book.is_full and self.may_start
            return book.spare(type_) if may_take else None

        return spare

    def _lease_changed(self, state: LeaseState) -> None:
        if self._is_current:
            self._around.dependencies.lease(state is LeaseState.HELD, f"lease {state.value}")
        for grabber in self._grabbers.values():
            grabber.wake()

    # --- the inbox

    def received(self, batch: Batch) -> None:
        batch.hold(self._around.clock.monotonic(), self._clocks)
        grabber = self._grabbers.get(batch.type)
        taken = [attempt for attempt in batch.attempts if self._admit(attempt)]
        if taken:  # first: handlers wait for it, and nobody yet for the next grab
            self._tasks.spawn(self._take_up(taken), "take-up")
        if grabber is not None:
            if any(attempt.limits for attempt in taken):
                grabber.foresee_nothing()
            if batch.more:
                grabber.heard(batch.grab_no, len(batch.attempts))
            else:
                grabber.answered(batch.grab_no, batch.grab_at)

    def _admit(self, attempt: Attempt) -> bool:
        decision = self._book.admit(attempt)
        if isinstance(decision, Taken):
            self._mine.add(attempt)
            self._settled.clear()
            return True
        if isinstance(decision, Refused):
            self._mine.add(attempt)
            self._settled.clear()
            self.hand_back(attempt, decision.ending)
            if decision.superseded is not None:
                self._stop(decision.superseded, Stop.STALE)
        return False

    def refused(self, type_: str, grab_no: int) -> None:
        grabber = self._grabbers.get(type_)
        if grabber is not None:
            grabber.refused(grab_no)

    def called(self, type_: str, at: str) -> None:
        grabber = self._grabbers.get(type_)
        if grabber is not None:
            grabber.called(at)

    def cancelled(self, key: bytes, fence: int) -> None:
        attempt = self._book.find(key, fence)
        if attempt is not None:
            self._stop(attempt, Stop.CANCELLED)

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        if not self._around.turns.stop(attempt, why) and attempt.stop is None:
            attempt.stop = why  # it is being locked; it will not start

    # --- taking up a batch

    async def _take_up(self, attempts: Sequence[Attempt]) -> None:
        """Lock all in one go, and run what we got."""
        if self._taking:
            attempts = await self._lock(attempts)
        if self._taking and any(attempt.limits for attempt in attempts):
            attempts = await self._take_places(attempts)
        if not self._taking:
            self._hand_back_all(attempts, DRAIN if self.may_start else LEASE_LOST)
            return
        launch = self._around.turns.launch
        for attempt in attempts:
            launch(attempt, self)

    async def _lock(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Those that are locked for us now; the others are given back."""
        for attempt in attempts:
            # Before the call: if its answer is lost, the locks may be ours all the same.
            attempt.locked = True
        try:
            fences = {attempt.key: attempt.fence for attempt in attempts}
            result = await self.standing.locks.lock(fences)
        except LeaseLost:
            self._hand_back_all(attempts, self._without_lease)
            return ()
        except MeshError as error:
            log.warning("cannot lock: %s", error, extra={"action": "lock_failed"})
            self._hand_back_all(attempts, ETCD_AWAY)
            return ()
        return self._without_held(attempts, result.held) if result.held else attempts

    def _without_held(
        self, attempts: Sequence[Attempt], held: Collection[bytes]
    ) -> Sequence[Attempt]:
        """Give back what others hold; the rest."""
        self._around.instruments.lock_conflicts(len(held))
        ours = []
        for attempt in attempts:
            if attempt.key in held:
                attempt.locked = False
                self.hand_back(attempt, LOCK_HELD)
            else:
                ours.append(attempt)
        return ours

    async def _take_places(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Those that have a place of each of their limits now; the others are given back."""
        limited = {owner_of(a.job_id, a.fence): a for a in attempts if a.limits}
        wishes = [PlaceWish(owner, attempt.limits) for owner, attempt in limited.items()]
        refused: Sequence[Attempt] = tuple(limited.values())
        ending = ETCD_AWAY
        try:
            result = await self.standing.places.take(wishes)
            for owner, places in result.taken.items():
                limited[owner].places = places
            refused, ending = [limited[owner] for owner in result.full], LIMIT_REACHED
        except LeaseLost:
            ending = self._without_lease
        except MeshError as error:
            log.warning("cannot take places: %s", error, extra={"action": "places_failed"})
        self._hand_back_all(refused, ending)
        return [attempt for attempt in attempts if attempt not in refused]

    @property
    def _without_lease(self) -> HandedBack:
        return LEASE_UNKNOWN if self.may_start else LEASE_LOST

    def _hand_back_all(self, attempts: Sequence[Attempt], ending: HandedBack) -> None:
        for attempt in attempts:
            self.hand_back(attempt, ending)

    def hand_back(self, attempt: Attempt, ending: HandedBack) -> None:
        self._around.instruments.ended(attempt, ending, 0.0)
        self.ended(attempt, ending, "")

    # --- what the runner says

    @property
    def may_start(self) -> bool:
        return self.standing.lease.alive

    def tell(self, report: Report) -> None:
        self._reporter.add(report)

    def tell_progress(self, attempt: Attempt, progress: Progressed) -> None:
        self._reporter.add_progress(attempt, progress)

    def ended(self, attempt: Attempt, ending: Ending | None, traceparent: str) -> None:
        self._book.end(attempt)
        self._around.turns.ended(attempt)
        if attempt.has_begun and (grabber := self._grabbers.get(attempt.type)) is not None:
            grabber.ended()
        attempt.data = b""
        if attempt.places:
            # Before the verdict: it does not run any more, and others may wait for its place.
            self._leaver.add(*attempt.places)
            attempt.places = ()
        if ending is None:
            if attempt.on_verdict is not None:
                attempt.on_verdict(Verdict.STALE)
            self._settle(attempt)
        else:
            if isinstance(ending, RUNS_AGAIN):
                # It runs nowhere now, and the next worker should not find it locked.
                self._unlock(attempt)
            self._reporter.add(Report(attempt, ending, traceparent))
        for type_ in self._book.sharing(attempt.type):
            self._around.board.wake(type_)

    # --- what the reporter says

    def judged(self, report: Report, verdict: Verdict) -> None:
        self._around.instruments.verdict(report.attempt, verdict)
        if report.attempt.on_verdict is not None:
            report.attempt.on_verdict(verdict)
        # What has succeeded runs nowhere again; what failed may be due now, and find its lock.
        over = verdict is Verdict.COMMITTED and isinstance(report.what, Succeeded)
        self._settle(report.attempt, patient=over)

    def stale(self, attempt: Attempt) -> None:
        self._around.instruments.verdict(attempt, Verdict.STALE)
        self._around.turns.stop(attempt, Stop.STALE)

    def connected(self, up: bool, why: str = "") -> None:
        if self._is_current:
            self._around.dependencies.orchestrator(up, why)

    def _settle(self, attempt: Attempt, *, patient: bool = False) -> None:
        self._unlock(attempt, patient=patient)
        if self._book.settle(attempt):
            self._around.board.wake_all()
        self._mine.discard(attempt)
        if not self._mine:
            self._settled.set()

    def _unlock(self, attempt: Attempt, *, patient: bool = False) -> None:
        if attempt.locked:
            attempt.locked = False
            add = self._unlocker.add_patient if patient else self._unlocker.add
            add((attempt.key, attempt.fence))

    async def _give_back_locks(self, locks: list[tuple[bytes, int]]) -> None:
        await self.standing.locks.unlock(dict(locks))
