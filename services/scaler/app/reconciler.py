"""The loop that acts: look at every pool, decide, and bring its workers to the desired count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.type_settings import TypeSettings
from services.mesh.runtime import Counts, Loop
from services.scaler.app.board import Board
from services.scaler.app.last_work import LastWork
from services.scaler.app.metrics import PoolMetrics
from services.scaler.app.scale_in import Departure, ScaleIn
from services.scaler.domain.ceiling import Limit
from services.scaler.domain.decision import PoolStatus, Reason, Trail
from services.scaler.domain.fleet import Fleet, Worker, parted
from services.scaler.domain.law import Outcome, Sight, Standing, decide
from services.scaler.domain.load import LoadReport
from services.scaler.domain.pool import PoolRecord, PoolSpec
from services.scaler.ports import Crew, Driver, Leader, Mirror, StatusStore

log = logging.getLogger(__name__)

Report = Callable[[], LoadReport | None]


@dataclass(slots=True)
class _Watched:
    """What is remembered of a pool from pass to pass."""

    standing: Standing
    trail: Trail
    last_work: LastWork
    status: PoolStatus | None = None
    #: What the shared store has.
    written: PoolStatus | None = None
    #: How many attempts a worker takes, as the last ones said; 0: none has said it yet.
    room: int = 0


@dataclass(slots=True)
class Drivers:
    """The drivers there are; a pool without one is decided about, but not acted on."""

    process: Driver
    everywhere: list[Driver] = field(init=False)

    def __post_init__(self) -> None:
        self.everywhere = [self.process]

    def of(self, spec: PoolSpec) -> Driver | None:
        return self.process if spec.process is not None else None


class Reconciler(Loop):
    """Runs at every news (statistics, registrations, pools, exits), when the law asks for another
    look, and every few seconds anyhow.

    Only the leading Scaler acts. A leader that was cut off believes in its lease a little longer
    than its followers see it; whoever acts twice in that time starts a worker too many, which the
    next pass lets go again: the desired count is a state to be reached, not a step to be repeated.
    """

    def __init__(
        self,
        *,
        leader: Leader,
        pools: Mirror[PoolRecord],
        workers: Mirror[Worker],
        statuses: Mirror[PoolStatus],
        settings: Mirror[TypeSettings],
        paused: Mirror[str],
        report: Report,
        drivers: Drivers,
        scale_in: ScaleIn,
        last_work: Callable[[], LastWork],
        store: StatusStore,
        board: Board,
        metrics: PoolMetrics,
        clock: Clock,
        interval: float,
        stale_after: timedelta,
    ) -> None:
        super().__init__("reconciler", interval)
        self._leader, self._report = leader, report
        self._pools, self._workers, self._statuses = pools, workers, statuses
        self._settings, self._paused = settings, paused
        self._drivers, self._scale_in, self._last_work = drivers, scale_in, last_work
        self._store, self._board, self._metrics = store, board, metrics
        self._clock, self._stale_after = clock, stale_after
        self._watched: dict[str, _Watched] = {}
        self._acting = False
        self._timer: asyncio.TimerHandle | None = None

    async def run_once(self) -> Counts:
        known = (self._pools, self._workers, self._statuses, self._settings, self._paused)
        if not (self._leader.is_leader and all(mirror.synced for mirror in known)):
            self._step_down()
            return {}
        self._step_up()
        counts = {"started": 0, "released": 0}
        rechecks: list[datetime] = []
        for record in sorted(self._pools.items.values(), key=lambda record: record.type):
            outcome = await self._tend(record, counts)
            if outcome is not None and outcome.recheck_at is not None:
                rechecks.append(outcome.recheck_at)
        # Deeds first, for all pools; the store may be slow.
        await self._write()
        await self._tidy()
        self._wake_at(min(rechecks, default=None))
        return counts

    async def stop(self) -> None:
        self._cancel_timer()
        await super().stop()

    # --- beginning and ceasing to act ---

    def _step_up(self) -> None:
        if not self._acting:
            self._acting = True
            self._metrics.leading(True)
            for driver in self._drivers.everywhere:
                driver.adopt()

    def _step_down(self) -> None:
        if self._acting:
            self._acting = False
            self._metrics.leading(False)
            self._metrics.forget()
            self._watched.clear()
            self._board.clear()
        self._cancel_timer()

    # --- one pool ---

    async def _tend(self, record: PoolRecord, counts: dict[str, int]) -> Outcome | None:
        """Decide about one pool and act; its troubles are not the others'."""
        try:
            watched = self._watched.get(record.type) or await self._take_up(record)
            crew = self._crew(record.spec)
            members = [w for w in self._members(record.type) if w.worker_id not in crew.dead]
            fleet = _fleet(members, crew)
            limit = self._limit(record.spec, watched, members)
            sight = self._sight(record, fleet, crew, limit, watched.last_work.worked_at)
            outcome = decide(record.spec, sight, watched.standing)
            if self._doubtful(record.spec, watched, outcome, members):
                return None
            watched.standing = outcome.standing
            started = await self._grow(record.spec, outcome, fleet)
            counts["started"] += started
            counts["released"] += self._shrink(record.spec, outcome, members, crew)
            fleet = Fleet(fleet.live, fleet.starting + started, fleet.draining)
            self._tell(record.type, watched, outcome, fleet)
        except DependencyUnavailable as error:
            extra = {"action": "pool_pass_failed", "type": record.type, "error": str(error)}
            log.warning("could not tend pool", extra=extra)
            return None
        except Exception:
            extra = {"action": "pool_pass_failed", "type": record.type}
            log.exception("could not tend pool", extra=extra)
            return None
        return outcome

    async def _take_up(self, record: PoolRecord) -> _Watched:
        """Go on where the Scaler that acted before left off; else from the workers there are."""
        status = self._statuses.items.get(record.type)
        if status is None:
            live = sum(not worker.draining for worker in self._members(record.type))
            watched = _Watched(Standing(desired=live), Trail(), self._last_work())
        else:
            decision = status.decision
            standing = Standing(desired=decision.desired, decision=decision, alarms=status.alarms)
            trail = Trail(await self._store.trail(record.type))
            watched = _Watched(standing, trail, self._last_work())
            watched.written = status
        self._watched[record.type] = watched
        return watched

    def _members(self, type_: str) -> list[Worker]:
        return [worker for worker in self._workers.items.values() if type_ in worker.types]

    def _crew(self, spec: PoolSpec) -> Crew:
        driver = self._drivers.of(spec)
        if driver is None:
            return Crew()
        return driver.observe(spec, self._workers.items.values())

    def _limit(self, spec: PoolSpec, watched: _Watched, members: list[Worker]) -> Limit | None:
        rooms = [w.types[spec.type] for w in members if not w.draining and w.types[spec.type] > 0]
        # The smallest: rather a worker too many than a limit that is not used.
        watched.room = min(rooms, default=watched.room or _launched_room(spec))
        settings = self._settings.items.get(spec.type)
        if settings is None or not settings.max_running:
            return None
        return Limit(settings.max_running, watched.room)

    def _doubtful(
        self, spec: PoolSpec, watched: _Watched, outcome: Outcome, members: list[Worker]
    ) -> bool:
        """Whether the pool would go as empty, and its workers have yet to say that they were idle.

        They are asked when that time begins, to have something to compare with, and when it is up.
        """
        workers = [worker for worker in members if worker.ours and not worker.draining]
        since, before = outcome.standing.empty_since, watched.standing
        if since is None or not workers or before.desired <= spec.min_workers:
            return False
        if outcome.decision.reason is not Reason.EMPTY:
            if before.empty_since is None:
                watched.last_work.ask(workers, self.nudge)
            return False
        doubtful = not watched.last_work.asked_since(since + spec.empty_for)
        if doubtful:
            watched.last_work.ask(workers, self.nudge)
        return doubtful

    def _sight(
        self,
        record: PoolRecord,
        fleet: Fleet,
        crew: Crew,
        limit: Limit | None,
        worked_at: datetime | None,
    ) -> Sight:
        return Sight(
            now=self._clock.now(),
            report=self._report(),
            fleet=fleet,
            hold=record.hold,
            crashes=crew.crashes,
            stale_after=self._stale_after,
            lead=crew.lead,
            worked_at=worked_at,
            limit=limit,
            paused=record.type in self._paused.items,
        )

    async def _grow(self, spec: PoolSpec, outcome: Outcome, fleet: Fleet) -> int:
        driver = self._drivers.of(spec)
        missing = outcome.decision.desired - fleet.coming
        if outcome.start_limit is not None:
            missing = min(missing, outcome.start_limit)
        # Asked again: what was awaited since the pass began may have outlasted the lease.
        if driver is None or missing <= 0 or not self._leader.is_leader:
            return 0
        return await driver.grow(spec, missing)

    def _shrink(self, spec: PoolSpec, outcome: Outcome, members: list[Worker], crew: Crew) -> int:
        driver = self._drivers.of(spec)
        if driver is None:
            return 0
        going, staying = parted(members, crew.leaving)
        surplus = max(0, len(staying) - outcome.decision.desired)
        departure = Departure(spec.type, driver, spec, going, staying, surplus)
        self._scale_in.begin(departure, self.nudge)
        return departure.count

    # --- telling ---

    def _tell(self, type_: str, watched: _Watched, outcome: Outcome, fleet: Fleet) -> None:
        decision = outcome.decision
        if watched.trail.add(decision):
            self._metrics.decided(type_, decision)
            extra = {
                "action": "pool_decided",
                "type": type_,
                "reason": decision.reason.name,
                "desired": decision.desired,
                "previous": decision.previous,
            }
            level = logging.INFO if decision.noteworthy else logging.DEBUG
            log.log(level, "decided: %s", decision.explanation, extra=extra)
        status = PoolStatus(fleet, decision, outcome.standing.alarms)
        watched.status = status
        self._metrics.status(type_, status)
        self._board.show(type_, status, watched.trail.newest_first())

    async def _write(self) -> None:
        """Tell the other Scalers, and our successor; only what is news."""
        for type_, watched in self._watched.items():
            status, written = watched.status, watched.written
            if status is None or (written is not None and status.same_news(written)):
                continue
            try:
                if await self._store.put(type_, status, watched.trail.newest_first()):
                    watched.written = status
            except DependencyUnavailable as error:
                extra = {"action": "status_not_written", "type": type_, "error": str(error)}
                log.warning("could not write a pool's status", extra=extra)

    # --- what pools left behind ---

    async def _tidy(self) -> None:
        """Drain workers whose pools are gone, and forget what was said about those pools."""
        known = self._pools.items
        orphans = [
            worker
            for worker in self._workers.items.values()
            if worker.ours and not any(type_ in known for type_ in worker.types)
        ]
        if orphans:
            departure = Departure("", self._drivers.process, None, orphans)
            self._scale_in.begin(departure, self.nudge)
        self._see_off_unborn()
        for type_ in [type_ for type_ in self._watched if type_ not in known]:
            del self._watched[type_]
            self._board.remove(type_)
            self._metrics.forget(type_)
        await self._forget_statuses([t for t in self._statuses.items if t not in known])

    def _see_off_unborn(self) -> None:
        """Follow what was started for pools that are gone, and has not registered."""
        if self._leader.is_leader:
            for driver in self._drivers.everywhere:
                served = {
                    record.type
                    for record in self._pools.items.values()
                    if self._drivers.of(record.spec) is driver
                }
                driver.observe_others(served, self._workers.items.values())

    async def _forget_statuses(self, types: Iterable[str]) -> None:
        for type_ in types:
            try:
                await self._store.delete(type_)
            except DependencyUnavailable as error:
                extra = {"action": "status_not_deleted", "type": type_, "error": str(error)}
                log.warning("could not delete a pool's status", extra=extra)

    # --- waking up ---

    def _wake_at(self, moment: datetime | None) -> None:
        self._cancel_timer()
        if moment is not None:
            delay = max(0.0, (moment - self._clock.now()).total_seconds())
            self._timer = asyncio.get_running_loop().call_later(delay, self.nudge)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _launched_room(spec: PoolSpec) -> int:
    return 0 if spec.process is None else spec.process.capacity


def _fleet(members: list[Worker], crew: Crew) -> Fleet:
    going, staying = parted(members, crew.leaving)
    return Fleet(live=len(staying), starting=crew.starting, draining=len(going))
