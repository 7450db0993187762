"""The keeping of one shard: its agents and their rounds, as one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from services.mesh.clock import Clock
from services.mesh.jobs.type_settings import TypeSettings
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.lease.port import LockTable
from services.mesh.runtime import Component, Tasks
from services.mesh.store.answers import Pulse
from services.scheduler.app.alarm import Alarm
from services.scheduler.app.board import DueBoard
from services.scheduler.app.expiring import Expirer
from services.scheduler.app.firing import ScheduleFirer
from services.scheduler.app.measures import Measures
from services.scheduler.app.purging import Purger, PurgeRules
from services.scheduler.app.releasing import Releaser
from services.scheduler.app.rescuing import Rescuer
from services.scheduler.app.rounds import Duty, Rounds
from services.scheduler.app.shards import Shards
from services.scheduler.app.slots import SlotGrabber, SlotRules
from services.scheduler.app.sweeping import Sweeper
from services.scheduler.domain.views import ShardView, TickReport
from services.scheduler.domain.word import Word
from services.scheduler.ports import Broker, Workers

#: Schedules make their jobs up to so many seconds before their time.
AHEAD = 1.5
#: A nudge takes no longer from the commit to our ear.
HEARD_LATE = 0.05
#: While dispatches may be lost, they are looked for this often.
SWEEP_SECONDS = 1.0
#: Looks at a shard are no further apart than this many ticks.
LONGEST_TICK = 1.2
#: How long a firing may take: a job may become due while its transaction commits.
FIRING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class KeepingRules:
    """How often the duties are done. Times in seconds."""

    tick: float = 2.0
    """A look at the shard: the coming slot, and whatever is due, overdue or expired."""
    rescue: float = 10.0
    """The comparison of rows and workers, while anything is in flight."""
    slot: SlotRules = field(default_factory=SlotRules)
    purge: PurgeRules = field(default_factory=PurgeRules)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the keepings of all shards share."""

    shards: Shards
    board: DueBoard
    broker: Broker
    locks: LockTable
    workers: Workers
    tasks: Tasks
    clock: Clock
    measures: Measures
    types: RegistryMirror[TypeSettings]


class Keeping:
    """One shard, looked after while `kept()` says that it is ours."""

    def __init__(
        self, shard: str, around: Surroundings, kept: Callable[[str], bool], rules: KeepingRules
    ) -> None:
        self.shard = shard
        self._kept, self._gate = kept, around.shards.gate(shard)
        self._clock, self._types = around.clock, around.types
        shards, board, broker = around.shards, around.board, around.broker
        measures, clock = around.measures, around.clock
        looks = _with_notice(rules)
        self.grabber = SlotGrabber(shard, shards, board, around.tasks, clock, measures, looks)
        self.grabber.on_seen = self._seen
        self.firer = ScheduleFirer(
            shard, shards, board, broker, measures, clock, AHEAD, self._schedules_fired
        )
        dispatch = rules.slot.dispatch
        self.sweeper = Sweeper(shard, shards, around.locks, board, broker, measures, dispatch)
        self.rescuer = Rescuer(shard, shards, around.workers, board, broker, measures)
        self.expirer = Expirer(shard, shards, broker, measures)
        times, repairs = self._time_duties(rules), self._repair_duties(rules)
        self.times = Rounds(f"times-{shard}", rules.tick, times, self._possible, clock)
        self.firer.alarm = Alarm(self.times.nudge)
        self.repairs = Rounds(f"repairs-{shard}", rules.rescue, repairs, self._possible, clock)
        self.purger = Purger(
            shard, shards, around.types, clock, measures, rules.purge, self._possible
        )
        purges = [Duty(self.purger.run_once, rules.purge.every)]
        self.purges = Rounds(f"purge-{shard}", rules.purge.every, purges, self._possible, clock)
        # By themselves: they need no etcd, and a long repair must not hold up who may run now.
        self.releaser = Releaser(shard, shards, board, broker, measures)
        releases = self._release_duties()
        self.releases = Rounds(f"releases-{shard}", rules.rescue, releases, self._possible, clock)

    def _time_duties(self, rules: KeepingRules) -> list[Duty]:
        # The look first: it tells the firer when.
        return [
            Duty(self.grabber.run_once, rules.tick),
            Duty(self.firer.run_once, wanted=self._may_fire),
        ]

    def _repair_duties(self, rules: KeepingRules) -> list[Duty]:
        return [
            Duty(self.rescuer.rescue_lost),
            Duty(self.sweeper.run_once, SWEEP_SECONDS, lambda: self._wants(_overdue)),
            Duty(self.rescuer.run_once, rules.rescue, lambda: self._wants(_in_flight)),
            Duty(self.expirer.run_once, wanted=lambda: self._wants(_expired)),
        ]

    def _release_duties(self) -> list[Duty]:
        return [
            Duty(self.releaser.run_once),
            Duty(self.releaser.check, wanted=lambda: self._wants(_unsure)),
        ]

    def _wants(self, what: Callable[[Pulse], bool]) -> bool:
        """Whether the last look at the shard saw it; while there was none, nothing is wanted."""
        return self.grabber.seen is not None and what(self.grabber.seen)

    def _seen(self, seen: Pulse) -> None:
        self.firer.seen(seen.next_schedule, self.grabber.asked)
        if self.firer.is_due:
            self.times.nudge()
        if _overdue(seen) or _expired(seen):
            self.repairs.nudge()
        if _ended(seen) or _unsure(seen):
            self.releases.nudge()

    def components(self) -> tuple[Component, ...]:
        """In the order they start."""
        return (self.grabber, self.times, self.repairs, self.releases, self.purges)

    # --- what others tell

    def taken_up(self) -> None:
        """The shard is ours now, or answers again: do everything at once."""
        self.times.restart()
        self.repairs.restart()
        self.releases.restart()

    def members_changed(self) -> None:
        """Whoever kept the shard before may have died in the middle of a repair."""
        self.repairs.restart()
        self.releases.restart()

    def given_up(self) -> None:
        """Another scheduler keeps the shard now."""
        self.grabber.forget()
        self.firer.forget()
        self.rescuer.forget()

    def heard(self, word: Word) -> None:
        """Work was stored that is due in a moment: jobs, or a schedule."""
        if not self._kept(self.shard):
            return
        if word.schedule:
            self.firer.heard(word.due_us)
            return
        self.grabber.expect(word.types, word.due_us)
        if word.more:
            self.grabber.read_soon(self._clock.monotonic() - HEARD_LATE)

    def worker_lost(self, worker_id: str) -> None:
        if self._kept(self.shard):
            self.rescuer.lost(worker_id)
            self.repairs.nudge()

    def parents_ended(self) -> None:
        """Jobs of this shard have ended that others wait for."""
        if self._kept(self.shard):
            self.releases.nudge()

    # --- what operators ask

    async def tick(self, report: TickReport) -> None:
        """Every duty once, ours or not."""
        agents = (self.grabber, self.firer, self.sweeper, self.rescuer, self.expirer, self.releaser)
        for agent in agents:
            report.add(await agent.run_once())
        report.add(await self.releaser.check())
        if self.grabber.seen is not None:
            report.due_types.update(self.grabber.seen.due_types)

    def view(self) -> ShardView:
        grabber = self.grabber
        return ShardView(
            self.shard, grabber.slot_end, grabber.waiting, grabber.lag(), self._gate.error
        )

    @property
    def open(self) -> bool:
        """Whether the shard answers."""
        return self._gate.open

    def _schedules_fired(self) -> None:
        # What was made just now may be due in the slot that was read already.
        since = self._clock.monotonic() - FIRING_SECONDS
        self.grabber.read_soon(since)

    def _may_fire(self) -> bool:
        # Jobs are made with the defaults of their types, so these must be known.
        return self.firer.is_due and self._types.synced

    def _possible(self) -> bool:
        return self._kept(self.shard) and self._gate.open


def _with_notice(rules: KeepingRules) -> SlotRules:
    """A look tells of dispatches that may be overdue before the next one: by then it is known that
    there is something to sweep, and a lost dispatch does not wait for a tick as well.
    """
    notice = rules.slot.dispatch - LONGEST_TICK * rules.tick
    return replace(rules.slot, dispatch=max(0.0, notice))


def _overdue(seen: Pulse) -> bool:
    return seen.overdue


def _in_flight(seen: Pulse) -> bool:
    return seen.in_flight


def _ended(seen: Pulse) -> bool:
    return seen.next_release is not None and seen.next_release <= seen.slot.now


def _unsure(seen: Pulse) -> bool:
    return seen.next_check is not None and seen.next_check <= seen.slot.now


def _expired(seen: Pulse) -> bool:
    return seen.next_expiry is not None and seen.next_expiry <= seen.slot.now
