"""The claimer: where credit meets due work.

A claim is one statement on one shard for one worker, and its jobs go out as one message: batches
stay whole. At most one claim per (type, shard) is under way, so that two do not share out what one
could carry; different shards are claimed from in parallel, each type's shards in turn.

Commit, then publish. Jobs that were claimed but could not be sent are taken back at once by their
fence; if that fails too, or we die in between, the sweep finds them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta

from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, MeshError
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed
from services.mesh.runtime import Counts, Loop, Tally, Tasks
from services.mesh.store.answers import ClaimAnswer
from services.mesh.telemetry.tracing import Tracing, sampled
from services.scheduler.app.alarm import Alarm
from services.scheduler.app.board import DueBoard
from services.scheduler.app.claims import LEAD, After, Claim, ClaimRules, Lanes, Short
from services.scheduler.app.limits import Limits
from services.scheduler.app.measures import Measures
from services.scheduler.app.shards import Shards
from services.scheduler.domain.limits import BatchLimits
from services.scheduler.domain.shares import NOTHING
from services.scheduler.domain.times import EPOCH, Shown, micros
from services.scheduler.domain.word import Served
from services.scheduler.ports import Broker, Shard

log = logging.getLogger(__name__)

#: Nobody waits for this tick; it only repairs a wake-up that a defect lost.
IDLE_SECONDS = 5.0
#: A second look comes so much after the time it is for.
SLACK = 0.005
#: Others look whether work stays undone when they have not heard that it is served for twice as
#: long (`calling`).
SAY_SECONDS = 0.25


class Claimer(Loop):
    """Begins claims whenever credit and due work meet. Also the one who passes on due work that
    has no credit here, since nobody else knows when the credit ran out.
    """

    def __init__(
        self,
        board: DueBoard,
        shards: Shards,
        broker: Broker,
        tasks: Tasks,
        clock: Clock,
        limits: BatchLimits,
        measures: Measures,
        tracing: Tracing,
        bounds: Limits,
        rules: ClaimRules | None = None,
    ) -> None:
        super().__init__("claimer", IDLE_SECONDS)
        self._board, self._shards, self._broker = board, shards, broker
        self._tasks, self._clock = tasks, clock
        self._limits, self._measures, self._tracing = limits, measures, tracing
        self._bounds, self._rules = bounds, rules or ClaimRules()
        self._lanes = Lanes(self._rules)
        self._under_way: set[tuple[str, str]] = set()
        self._per_shard: Counter[str] = Counter()
        self._linger = Alarm(self.nudge)
        #: Marks of the flags that were raised for a second look.
        self._looks: dict[tuple[str, str], int] = {}
        #: What everything is to be looked at for, in a moment.
        self._deeper: set[tuple[str, str]] = set()
        #: Claims that have ended, for tests to wait on.
        self.claims = Tally()
        #: Told of each claim that came back short.
        self.on_short: Callable[[Short], None] = lambda short: None
        #: Told of a type with credit that nothing more is known to wait for.
        self.on_quiet: Callable[[str], None] = lambda type_: None
        #: The other schedulers.
        self.others: Callable[[], Collection[str]] = frozenset

    async def run_once(self) -> Counts:
        """Begin every claim that can begin now; they end by themselves. How many."""
        begun = 0
        if self._broker.connected and self._bounds.known and self._board.knows_pauses():
            for type_ in self._board.flags.types():
                if self._board.has_credit(type_):
                    begun += self._begin(type_)
                else:
                    self._board.on_unserved(type_)
        return {"begun": begun, "told": await self._board.tell(self._under_way)}

    def is_claiming(self, type_: str) -> bool:
        """Whether a claim of the type is under way."""
        return any(type_ == claimed for claimed, _ in self._under_way)

    async def finish(self, timeout: float) -> None:
        """Return when no claim is under way."""
        while self._under_way:
            await self.claims.more(timeout=timeout)

    async def stop(self) -> None:
        self._linger.clear()
        await super().stop()

    # --- beginning

    def _begin(self, type_: str) -> int:
        begun = 0
        for shard in self._board.flags.shards(type_):
            if self._may_claim(type_, shard):
                grab = self._board.book.take(type_)
                if grab is None:
                    break
                self._spawn(grab, shard)
                begun += 1
        return begun

    def _may_claim(self, type_: str, shard: str) -> bool:
        if (type_, shard) in self._under_way or not self._shards.gate(shard).open:
            return False
        if self._per_shard[shard] >= self._rules.most_per_shard:
            return False
        wait = self._lanes.of(type_, shard).pace.wait(self._clock.monotonic())
        if wait <= 0 and (settings := self._bounds.settings(type_)) is not None:
            mark = self._board.flags.mark(type_, shard) or 0
            wait = self._bounds.wait(settings, shard, mark, self.is_claiming(type_))
        if 0 < wait < math.inf:
            self._linger.set(wait)
        return wait <= 0

    def _spawn(self, grab: Grab, shard: str) -> None:
        self._under_way.add((grab.type, shard))
        self._per_shard[shard] += 1
        mark = self._board.flags.begin(grab.type, shard)
        nudges = self._board.flags.nudges(grab.type, shard)
        limit = self._limits.limit(grab.type, grab.credit)
        ahead = self._rules.ahead_for(grab)
        settings = self._bounds.settings(grab.type)
        if settings is not None:
            limit = self._bounds.begin(settings, limit)
            ahead = timedelta(0)  # what waits for its time would hold a place
        lane, now = self._lanes.of(grab.type, shard), self._clock.monotonic()
        # By keys there is one way to claim; it leaves nothing aside.
        keyed = settings is not None and settings.max_running_per_key
        aside = NOTHING if keyed else lane.share.next(now)
        back = None if settings is not None or not aside.is_nothing else lane.depth.next(now)
        recent = aside.recent if back is None else back
        claim = Claim(
            grab,
            shard,
            limit,
            mark,
            nudges,
            now,
            ahead,
            None if recent is None else timedelta(seconds=recent),
            shallow=back is not None,
            below=aside.below,
            turn=aside.turn,
            settings=settings,
        )
        self._tasks.spawn(self._run_claim(claim), f"claim-{shard}-{grab.type}", vital=False)

    def look_at_everything(self, type_: str, shard: str) -> None:
        """There may be work that has been due for long."""
        self._lanes.of(type_, shard).depth.forget(self._clock.monotonic())

    # --- one claim

    async def _run_claim(self, claim: Claim) -> None:
        brought: ClaimAnswer | None = None
        try:
            answer = await self._ask(claim)
            await self._deliver(claim, answer.jobs)
            brought = answer
        except MeshError as error:
            extra = {"action": "claim_failed", "shard": claim.shard, "type": claim.grab.type}
            log.info("claim failed: %s", error, extra=extra)
        finally:
            after = self._end(claim, brought)
        if after.full is not None:
            await self._answer_empty(after.full)
        if brought is not None and brought.jobs:
            await self._say_served(claim, after.served)
            # A worker waits for what was published, and the others should know before its next
            # grab comes to them: both leave before the rest is done.
            await asyncio.sleep(0)
            self._measure(claim, brought.jobs)
            await self._hint(claim, brought.jobs)

    async def _ask(self, claim: Claim) -> ClaimAnswer:
        grab, shard = claim.grab, claim.shard
        lane, brought = self._lanes.of(grab.type, shard), 0
        lane.pace.began(claim.began)
        try:
            answer = await self._shards.ask(shard, lambda store: self._claim(store, claim))
            brought = len(answer.jobs)
            received = self._clock.monotonic()
            if answer.now > EPOCH:  # else nothing was asked, and no clock looked at
                self._shards.clocks[shard].read(micros(answer.now), claim.began, received)
            lane.learn(claim, answer, received)
            if claim.settings is not None:
                answer = self._bounds.brought(claim.settings, answer)
            return answer
        finally:
            ended = self._clock.monotonic()
            # One that left something aside says nothing about how much there is.
            seen = brought if claim.is_thorough else claim.limit
            lane.pace.ended(ended, seen, claim.limit)
            self._measures.claim_took(shard, ended - claim.began)

    async def _claim(self, store: Shard, claim: Claim) -> ClaimAnswer:
        grab, settings = claim.grab, claim.settings
        if settings is None or not settings.max_running_per_key:
            wanted = (grab.type, grab.worker_id, claim.limit, claim.ahead)
            return await store.claim(*wanted, claim.recent, claim.below, claim.turn)
        held = self._bounds.held_keys(grab.type, claim.shard)
        per_key = settings.max_running_per_key
        return await store.claim_keyed(grab.type, grab.worker_id, claim.limit, per_key, held)

    def _end(self, claim: Claim, brought: ClaimAnswer | None) -> After:
        """Put flag and credit right; a claim that failed costs neither."""
        grab, shard = claim.grab, claim.shard
        count = 0 if brought is None else len(brought.jobs)
        short = brought is not None and count < claim.limit
        stuck = brought is not None and short and brought.skipped and not brought.more
        left = brought is not None and (brought.skipped or brought.more)
        exhausted = short and not left and claim.is_thorough
        self._board.flags.end(
            grab.type, shard, claim.mark, exhausted=exhausted, nudges=claim.nudges
        )
        if claim.settings is not None:
            # Not if the flag was raised meanwhile: new work may have keys with room.
            mark = self._board.flags.mark(grab.type, shard)
            stuck = stuck and mark == claim.mark
            self._bounds.end(claim.settings, shard, claim.limit, mark, stuck)
        full = self._board.book.settle(grab, count)
        self._under_way.discard((grab.type, shard))
        self._per_shard[shard] -= 1
        self.claims.add()
        if self._board.flags:
            self.nudge()
        if not self._board.flags.wants(grab.type):
            self.on_quiet(grab.type)
        if exhausted and claim.shallow:
            self._look_deeper(claim)
        if exhausted and brought is not None:
            until = brought.now + claim.ahead
            self.on_short(Short(grab.type, shard, claim.began, count, until))
        if (exhausted or stuck) and self._rules.ahead and not claim.ahead:
            self._look_again(claim)
        # What it did not bring somebody else has taken, or may fail to: then that one says so.
        has_all = exhausted and count >= len(claim.nudges)
        return After(full, claim.nudges if has_all else ())

    def served(self, word: Served) -> None:
        """Another scheduler took the work that some nudges told of. Not if we are asking for it,
        too: what we have locked it has passed over.
        """
        if (word.type, word.shard) not in self._under_way:
            self._board.flags.served(word.type, word.shard, word.nudges)

    def _look_again(self, claim: Claim) -> None:
        """Timers go off ahead, and this claim did not look ahead: what is due in a moment may be
        what the flag was raised for. Look once more when it is, and not again after that.
        """
        key = (claim.grab.type, claim.shard)
        if self._looks.pop(key, None) != claim.mark:
            lead = LEAD * self._rules.ahead + SLACK
            asyncio.get_running_loop().call_later(lead, self._look, *key)

    def _look_deeper(self, claim: Claim) -> None:
        """The flag may have been raised for a job that has been due for long, since it came back:
        look at everything as soon as that may be.
        """
        key = (claim.grab.type, claim.shard)
        if key not in self._deeper:
            self._deeper.add(key)
            wait = self._lanes.of(*key).depth.wait(self._clock.monotonic())
            asyncio.get_running_loop().call_later(wait, self._deep, key)

    def _deep(self, key: tuple[str, str]) -> None:
        self._deeper.discard(key)
        self._look(*key)

    def _look(self, type_: str, shard: str) -> None:
        flags = self._board.flags
        # Of keys that are all full the flag stays up, and no claim is made for it.
        if not flags.is_raised(type_, shard) or self._bounds.is_stuck(type_, shard):
            self._looks[type_, shard] = flags.raise_(type_, shard, told=True)
            self.nudge()

    # --- sending

    async def _deliver(self, claim: Claim, jobs: list[Claimed]) -> None:
        if not jobs:
            return
        grab = claim.grab
        attributes = {"jobmesh.shard": claim.shard, "jobmesh.type": grab.type}
        links = sampled(job.traceparent for job in jobs) if self._tracing.enabled else ()
        with self._tracing.start_span(
            "dispatch", "producer", parent="", links=links, attributes=attributes
        ) as span:
            span.set("jobmesh.count", len(jobs))
            try:
                size = await self._broker.dispatch(grab, jobs, self._shard_now(claim))
            except DependencyUnavailable:
                await self._take_back(claim, jobs)
                raise
        self._limits.weighed(grab.type, len(jobs), size)

    def _measure(self, claim: Claim, jobs: list[Claimed]) -> None:
        due_times = [job.due_time for job in jobs]
        self._measures.claimed(claim.grab.type, claim.shard, due_times, jobs[0].dispatch_time)

    def _shard_now(self, claim: Claim) -> Shown:
        if not claim.ahead:
            return Shown()
        return self._shards.clocks[claim.shard].shown(self._clock.monotonic())

    async def _take_back(self, claim: Claim, jobs: list[Claimed]) -> None:
        self._measures.unsent(claim.shard, len(jobs))
        if claim.settings is not None:
            self._bounds.book.unsent(jobs)
        dispatches = [(job.id, job.fence) for job in jobs]
        try:
            await self._shards.ask(claim.shard, lambda store: store.sweep(dispatches))
            self.look_at_everything(claim.grab.type, claim.shard)
        except MeshError as error:
            extra = {"action": "take_back_failed", "shard": claim.shard, "count": len(jobs)}
            log.warning("unsent jobs are left to the sweep: %s", error, extra=extra)

    async def _say_served(self, claim: Claim, nudges: Collection[int]) -> None:
        """What nobody need ask for; and in a stream, now and then, that somebody serves it."""
        type_, shard, now = claim.grab.type, claim.shard, self._clock.monotonic()
        lane, others = self._lanes.of(type_, shard), self.others()
        if others and (nudges or now - lane.told >= SAY_SECONDS):
            lane.told = now
            with suppress(DependencyUnavailable):
                await self._broker.served(others, Served(type_, shard, nudges))

    async def _hint(self, claim: Claim, jobs: list[Claimed]) -> None:
        with suppress(DependencyUnavailable):
            await self._broker.hint_claims(claim.shard, claim.grab.worker_id, jobs)

    async def _answer_empty(self, grab: Grab) -> None:
        with suppress(DependencyUnavailable):
            await self._broker.answer_empty(grab)
