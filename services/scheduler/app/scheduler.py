"""All agents of one scheduler, and who tells whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.mesh.clock import Clock
from services.mesh.jobs.credit import CreditBook, Grab
from services.mesh.jobs.type_settings import TypeSettings
from services.mesh.lease.keys import Keys
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.lease.port import LockTable, Registry
from services.mesh.runtime import Component, Readiness, Tasks
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing
from services.scheduler.app.board import DueBoard
from services.scheduler.app.calling import Caller
from services.scheduler.app.claimer import Claimer
from services.scheduler.app.claims import ClaimRules, Short
from services.scheduler.app.console import Console
from services.scheduler.app.follow import Follower
from services.scheduler.app.keeping import Keeping, KeepingRules, Surroundings
from services.scheduler.app.lending import Lender
from services.scheduler.app.limits import Limits
from services.scheduler.app.measures import Measures
from services.scheduler.app.members import Grant, Membership
from services.scheduler.app.parking import Parking
from services.scheduler.app.shards import Shards
from services.scheduler.domain.flags import DueFlags
from services.scheduler.domain.lending import LoanPlan, LoanRules
from services.scheduler.domain.limits import BatchLimits
from services.scheduler.domain.word import Word
from services.scheduler.ports import Broker, Shard, Workers


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are among the schedulers."""

    scheduler_id: str
    address: str = ""
    """Where SchedulerService answers."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a scheduler behaves."""

    park: float = 5.0
    """How long a grab waits, in seconds."""
    batch: int = 500
    message_bytes: int = 900_000
    claims: ClaimRules = field(default_factory=ClaimRules)
    keeping: KeepingRules = field(default_factory=KeepingRules)
    loans: LoanRules = field(default_factory=LoanRules)


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything that a scheduler talks to."""

    stores: Mapping[str, Shard]
    broker: Broker
    registry: Registry
    keys: Keys
    locks: LockTable
    workers: Workers
    grant: Grant
    types: RegistryMirror[TypeSettings]
    places: RegistryMirror[str]


@dataclass(frozen=True, slots=True)
class Life:
    """What the process lends."""

    tasks: Tasks
    clock: Clock
    readiness: Readiness
    metrics: Metrics
    tracing: Tracing


class Scheduler:
    """Makes the agents and connects them; `components` lists them in the order they start."""

    def __init__(self, identity: Identity, rules: Rules, outside: Outside, life: Life) -> None:
        self._measures = Measures(life.metrics)
        shards_up = life.readiness.require("shards")
        self.shards = Shards(outside.stores, life.tasks, shards_up, self._measures)
        flags = DueFlags(now=life.clock.monotonic)
        self.board = DueBoard(flags, CreditBook(rules.park), outside.broker)
        self.board.serve(outside.stores)
        self.limits = Limits(identity.scheduler_id, outside.types, outside.places, life.clock)
        self.claimer = self._make_claimer(rules, outside, life)
        self.caller = Caller(self.board, self.shards, outside.broker, life.clock, self._measures)
        self.parking = Parking(
            self.board, outside.broker, life.clock, self._measures, self.claimer.nudge
        )
        self.lender = Lender(
            self.board, outside.broker, self.limits, life.clock, LoanPlan(rules.loans)
        )
        self.membership = _make_membership(identity, outside, life)
        around = self._surroundings(outside, life)
        self.keepings = {
            name: Keeping(name, around, self.membership.keeps, rules.keeping)
            for name in outside.stores
        }
        registry, keys = outside.registry, outside.keys
        self._workers = Follower(registry, keys.workers, life.tasks, went=self._worker_lost)
        self._pauses = Follower(
            registry,
            keys.paused,
            life.tasks,
            came=self._paused,
            went=self.board.resume,
            listed=self.claimer.nudge,
        )
        self.console = Console(
            self.membership, self.board, self.keepings, registry, self._pauses, self.lender.recall
        )
        outside.types.on_change(self.lender.settings_changed)
        self._connect(life.readiness)

    def _make_claimer(self, rules: Rules, outside: Outside, life: Life) -> Claimer:
        return Claimer(
            self.board,
            self.shards,
            outside.broker,
            life.tasks,
            life.clock,
            BatchLimits(rules.batch, rules.message_bytes),
            self._measures,
            life.tracing,
            self.limits,
            rules.claims,
        )

    def _surroundings(self, outside: Outside, life: Life) -> Surroundings:
        return Surroundings(
            self.shards,
            self.board,
            outside.broker,
            outside.locks,
            outside.workers,
            life.tasks,
            life.clock,
            self._measures,
            outside.types,
        )

    def components(self) -> Iterator[Component]:
        """In the order they start; they stop in the reverse order, so that duties end before the
        lease that others see us by.
        """
        yield self.shards
        yield self._workers
        yield self._pauses
        yield self.membership
        yield self.claimer
        yield self.caller
        yield self.parking
        yield self.lender
        for keeping in self.keepings.values():
            yield from keeping.components()

    # --- who tells whom

    def _connect(self, readiness: Readiness) -> None:
        self.board.wake = self.claimer.nudge
        self.board.knows_pauses = lambda: self._pauses.known
        self.board.on_unserved = self._unserved
        self.board.on_long_due = self.claimer.look_at_everything
        self.board.on_soon = lambda word: self.keepings[word.shard].heard(word)
        self.limits.wake = self.claimer.nudge
        self.limits.members = lambda: self.membership.members
        self.claimer.others = lambda: self.membership.members - {self.membership.member}
        self.claimer.on_short = self._came_back_short
        self.claimer.on_quiet = self.parking.on_idle = self.lender.offer
        self.lender.is_claiming = self.claimer.is_claiming
        self.shards.on_open(self._shard_open)
        self.membership.on_change(self._members_changed)
        # A broker that is back lets parked grabs be served again.
        readiness.listen(self.claimer.nudge)

    def heard(self, word: Word) -> None:
        """A nudge came."""
        self.lender.heard(word)
        self.board.heard(word)

    def grabbed(self, grab: Grab) -> None:
        """A worker asks for work, or an Orchestrator that had its grab on loan."""
        if grab.lend_at:
            self.lender.asked(grab)
        self.parking.grabbed(grab)

    def _unserved(self, type_: str) -> None:
        self.lender.want(type_)
        self.caller.unserved()

    def _paused(self, type_: str) -> None:
        self.board.pause(type_)
        self.lender.want(type_)

    def _came_back_short(self, short: Short) -> None:
        self.keepings[short.shard].grabber.covered(short.type, short.until, short.began)

    def _shard_open(self, shard: str) -> None:
        self.claimer.nudge()
        self.keepings[shard].taken_up()

    def _members_changed(self, gained: frozenset[str], lost: frozenset[str]) -> None:
        for name, keeping in self.keepings.items():
            if name in gained:
                keeping.taken_up()
            elif name in lost:
                keeping.given_up()
            elif self.membership.keeps(name):
                keeping.members_changed()

    def parents_ended(self, shard: str) -> None:
        """Word came that jobs of a shard have ended that others wait for."""
        if shard in self.keepings:
            self.keepings[shard].parents_ended()

    def _worker_lost(self, worker_id: str) -> None:
        self.parking.lost(worker_id)
        for keeping in self.keepings.values():
            keeping.worker_lost(worker_id)


def _make_membership(identity: Identity, outside: Outside, life: Life) -> Membership:
    return Membership(
        identity.scheduler_id,
        outside.stores,
        outside.registry,
        outside.keys,
        outside.grant,
        life.tasks,
        life.readiness.require("etcd"),
        identity.address.encode(),
    )
