"""The worker as a whole: one tenure after the other, and the drain at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from services.mesh.errors import AttemptNotFound, MeshError
from services.mesh.runtime import Backoff, Tasks
from services.worker.app.tenure import Surroundings, Tenure
from services.worker.app.voice import Voice
from services.worker.domain.attempt import Attempt, Stop
from services.worker.domain.info import Description, WorkerInfo
from services.worker.ports import Membership, Schedulers

log = logging.getLogger(__name__)

ENTER = Backoff(first=0.2, ceiling=1.0)
#: Of the time to drain, what is kept for handing back: killing, reporting, hearing the verdicts.
RESERVE_SECONDS = 3.0
ANNOUNCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Times, in seconds."""

    lost_grace: float = 2.0
    """How long attempts may go on after the lease was lost before a new identity begins."""
    listen_after: float = 0.1
    """How long dispatches are still heard after the lease was given up."""
    drain_seconds: float = 20.0


class Node:
    """A Component of the process. `served` returns when our own server can be reached."""

    name = "worker"

    def __init__(
        self,
        membership: Membership,
        schedulers: Schedulers,
        around: Surroundings,
        *,
        about: Callable[[], WorkerInfo],
        tasks: Tasks,
        served: Callable[[], Awaitable[None]],
        end_process: Callable[[str], None],
        on_death: Callable[[str], None],
        settings: NodeSettings,
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        self._membership, self._schedulers = membership, schedulers
        self._around = around
        self._about = about
        self._tasks = tasks
        self._served = served
        self._end_process = end_process
        self._on_death = on_death
        self._settings = settings
        self._on_drain = on_drain
        self._offer_changed = asyncio.Event()
        self._tenure: Tenure | None = None
        self._leaving: set[Tenure] = set()
        self._draining = False
        self._drain_task: asyncio.Task[None] | None = None
        self._tenures_task: asyncio.Task[None] | None = None

    # --- a component

    async def start(self) -> None:
        """Returns at once: what we depend on may come up later than we do."""
        self._tenures_task = self._tasks.spawn(self._serve(), "tenures")
        self._tasks.spawn(self._watch_schedulers(), "scheduler-watch")
        self._tasks.spawn(self._announce_offers(), "offers")

    async def stop_taking(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._around.dependencies.intake(False, "draining")
        self._on_drain()
        if self._tenure is not None:
            await self._stop_taking(self._tenure)

    async def _stop_taking(self, tenure: Tenure) -> None:
        tenure.stop_taking()
        # For people and the scaler; nothing depends on it.
        with suppress(MeshError, TimeoutError):
            async with asyncio.timeout(ANNOUNCE_SECONDS):
                await tenure.standing.announce(draining=True)

    async def finish(self, timeout: float) -> None:
        """Let attempts end; hand back the rest; see that all of it is committed."""
        reserve = min(RESERVE_SECONDS, timeout / 2)
        await self._finish(timeout - reserve, reserve)

    async def _finish(self, run_seconds: float, reserve: float) -> None:
        runner, loop = self._around.runner, asyncio.get_running_loop()
        await _within(run_seconds, runner.idle())
        end = loop.time() + reserve
        if stopped := runner.stop_all(Stop.DRAIN):
            log.info("handing back", extra={"action": "handing_back", "count": stopped})
            await _within(reserve * 0.7, runner.idle())
            runner.abandon_all()
        for tenure in self._tenures():
            await _within(end - loop.time(), tenure.settled())

    async def stop(self) -> None:
        self._draining = True
        if self._tenures_task is not None:
            self._tenures_task.cancel()
            await asyncio.wait({self._tenures_task})
        self._around.turns.close()
        await self._around.runner.close()
        listen = self._settings.listen_after
        await asyncio.gather(*(tenure.close(listen) for tenure in self._tenures()))
        self._tenure = None
        self._leaving.clear()

    # --- tenures

    async def _serve(self) -> None:
        await self._served()
        while not self._draining:
            tenure = self._tenure = await self._enter()
            if self._draining:
                # The drain began meanwhile, and found no tenure to tell.
                await self._stop_taking(tenure)
            else:
                self._take_work(tenure)
            await tenure.standing.lease.lost.wait()
            await self._retire(tenure)

    def _take_work(self, tenure: Tenure) -> None:
        if self._around.book.lends:
            # Executors may have come or gone while it began.
            self._offer_changed.set()
        extra = {"action": "identity_taken", "worker_id": tenure.worker_id}
        log.info("taking work", extra=extra)
        self._around.dependencies.intake(True)

    async def _enter(self) -> Tenure:
        failures = 0
        while True:
            try:
                return await self._begin()
            except MeshError as error:
                failures += 1
                self._around.dependencies.lease(False, str(error))
                extra = {"action": "enter_failed", "error": str(error)}
                log.warning("cannot register", extra=extra)
            await asyncio.sleep(ENTER.delay(failures))

    async def _begin(self) -> Tenure:
        tenure = Tenure(await self._membership.enter(), self._around, self._on_death)
        try:
            await tenure.begin()
        except BaseException:
            await tenure.close()
            raise
        return tenure

    async def _retire(self, tenure: Tenure) -> None:
        """The lease is lost: take nothing more, and let what runs come to its end for a moment.

        Its results may still be accepted. A new identity at once would be sent the very jobs that
        still run here, as soon as they are rescued.
        """
        log.error("lost our lease", extra={"action": "identity_lost", "id": tenure.worker_id})
        self._around.instruments.identity_lost()
        self._around.dependencies.intake(False, "lease lost")
        tenure.retire()
        self._leaving.add(tenure)
        leaving = self._tasks.spawn(self._see_off(tenure), f"leaving {tenure.worker_id}")
        await asyncio.wait({leaving}, timeout=self._settings.lost_grace)

    async def _see_off(self, tenure: Tenure) -> None:
        await tenure.settled()
        await tenure.close()
        self._leaving.discard(tenure)

    def _tenures(self) -> list[Tenure]:
        current = [self._tenure] if self._tenure is not None else []
        return [*current, *(tenure for tenure in self._leaving if tenure not in current)]

    # --- types that come and go with attached executors

    def serves_itself(self, type_: str) -> bool:
        book = self._around.book
        return type_ in book.capacity and not book.is_lent(type_)

    def in_hand(self, types: Collection[str]) -> int:
        """How many attempts of these types are in hand."""
        return sum(map(self._around.book.in_hand, types))

    def lend(self, capacity: Mapping[str, int], room: Callable[[str], int]) -> None:
        """Attached executors can take so much, by type."""
        for type_ in capacity:
            self._around.instruments.serves(type_)
        gone = [type_ for type_ in self._around.book.lent if not capacity.get(type_)]
        if self._around.book.lend(capacity, room):
            self._offer_changed.set()
        for type_ in gone:
            self._around.board.withdraw(type_)
        for type_ in capacity:
            self._around.board.wake(type_)

    async def _announce_offers(self) -> None:
        while True:
            await self._offer_changed.wait()
            self._offer_changed.clear()
            tenure = self._tenure
            if tenure is None or self._draining:
                continue  # the next one announces all there is
            try:
                await tenure.offer()
            except MeshError as error:
                log.warning("cannot announce: %s", error, extra={"action": "announce_failed"})
                self._offer_changed.set()
            await asyncio.sleep(ANNOUNCE_SECONDS)

    # --- grabs that were lost with whoever had them

    def regrab(self) -> None:
        """A broker or a scheduler went, perhaps with our grabs."""
        if self._tenure is not None:
            self._tenure.regrab()

    async def _watch_schedulers(self) -> None:
        async for scheduler_id in self._schedulers.departures():
            extra = {"action": "scheduler_gone", "scheduler_id": scheduler_id}
            log.info("a scheduler is gone: asking again", extra=extra)
            self.regrab()

    # --- for people

    def describe(self) -> Description:
        tenure, clock = self._tenure, self._around.clock
        trusted = None
        if tenure is not None:
            left = tenure.standing.trusted_until - clock.monotonic()
            trusted = clock.now() + timedelta(seconds=left)
        worker_id = "" if tenure is None else tenure.worker_id
        return Description(
            info=replace(self._about(), worker_id=worker_id, draining=self._draining),
            running=self._around.book.in_hand(),
            lease_trusted_until=trusted,
            finished=self._around.instruments.finished,
        )

    def running(self) -> list[Attempt]:
        return list(self._around.book)

    def cancel(self, job_id: UUID, fence: int) -> None:
        """Stop one attempt; AttemptNotFound if it is not here."""
        attempt = self._around.book.find(job_id.bytes, fence)
        if attempt is None or not self._around.turns.stop(attempt, Stop.OPERATOR):
            raise AttemptNotFound(job_id)

    def listen(self, job_id: UUID, fence: int) -> tuple[Attempt, Voice]:
        """What the handler of an attempt says; AttemptNotFound if it does not run here."""
        attempt = self._around.book.find(job_id.bytes, fence)
        voice = None if attempt is None else self._around.runner.voice_of(attempt)
        if attempt is None or voice is None:
            raise AttemptNotFound(job_id)
        return attempt, voice

    def drain(self, timeout: float | None) -> int:
        """Begin to end this worker; returns how many attempts it has in hand."""
        if self._drain_task is None:
            limit = self._settings.drain_seconds if timeout is None else timeout
            self._drain_task = self._tasks.spawn(self._drain(limit), "drain")
        return self._around.book.in_hand()

    async def _drain(self, timeout: float) -> None:
        await self.stop_taking()
        await self._finish(timeout, RESERVE_SECONDS)
        self._end_process("drained")


async def _within(seconds: float, work: Awaitable[None]) -> None:
    """Wait for the work, but no longer than that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await work
