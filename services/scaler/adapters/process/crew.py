"""The worker processes of one pool, from start to end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.mesh.clock import Clock
from services.scaler.adapters.process.handle import ExitWatch
from services.scaler.adapters.process.last_words import last_words
from services.scaler.adapters.process.launcher import Launched
from services.scaler.app.metrics import PoolMetrics
from services.scaler.domain.crashes import CLEAN, CrashRecord
from services.scaler.domain.fleet import Worker
from services.scaler.domain.pool import ProcessLaunch

log = logging.getLogger(__name__)

#: Weight of the newest start in the running mean of how long starts take.
_NEWEST = 0.3
FIRST_LEAD = timedelta(seconds=1)


@dataclass(slots=True)
class Hand:
    """One worker process."""

    launched: Launched
    started_at: datetime
    watch: ExitWatch | None = None
    registered: bool = False
    settled: bool = False
    #: Told to go: its end is no crash.
    leaving: bool = False
    #: When it was stopped for not registering: a crash already, so its end is none.
    given_up_at: datetime | None = None

    @property
    def pid(self) -> int:
        return self.launched.process.pid

    def gone(self) -> bool:
        child = self.launched.child
        return child.poll() is not None if child else not self.launched.process.alive()


class ProcessCrew:
    """Follows the processes of one type: who registers, who settles, who dies young."""

    def __init__(
        self,
        type_: str,
        clock: Clock,
        metrics: PoolMetrics,
        changed: Callable[[], None],
        *,
        start_timeout: timedelta,
        settle: timedelta,
        grace: timedelta,
    ) -> None:
        self._type, self._clock, self._metrics, self._changed = type_, clock, metrics, changed
        self._start_timeout, self._settle, self._grace = start_timeout, settle, grace
        self._hands: dict[int, Hand] = {}
        #: When processes ended, for those whose registrations are still there.
        self._ends: dict[int, datetime] = {}
        self._launch: ProcessLaunch | None = None
        self.crashes: CrashRecord = CLEAN
        self.lead = FIRST_LEAD

    @property
    def starting(self) -> int:
        """Those that were given up as well, until they are gone: or more and more would hang."""
        return sum(not hand.registered and not hand.leaving for hand in self._hands.values())

    def pids(self) -> frozenset[int]:
        return frozenset(self._hands)

    def hand(self, pid: int) -> Hand | None:
        return self._hands.get(pid)

    def join(self, launched: Launched) -> None:
        """Take a process in, just started or found."""
        hand = Hand(launched, self._clock.now())
        self._hands[hand.pid] = hand
        try:
            hand.watch = ExitWatch(hand.pid, lambda: self._ended(hand))
        except ProcessLookupError:
            self._ended(hand)
        except OSError:
            # No pidfds to be had (a sandbox, a limit): its end is seen at the next pass instead.
            log.warning("cannot watch a process", extra={"action": "process_unwatched"})

    def failed(self, started_at: datetime, detail: str) -> None:
        """A process that could not even be started."""
        self._crashed(started_at, detail)
        self._changed()

    def review(self, workers: Sequence[Worker], launch: ProcessLaunch | None) -> None:
        """Compare with the workers of this machine that are registered now."""
        now = self._clock.now()
        registered = {worker.pid for worker in workers}
        for hand in list(self._hands.values()):
            if hand.watch is None and hand.gone():
                self._ended(hand)
                continue
            age = now - hand.started_at
            if not hand.registered and hand.pid in registered:
                self._registered(hand, age)
            if not hand.registered and age > self._start_timeout:
                self._give_up(hand, age)
            if hand.registered and not hand.settled and age > self._settle:
                hand.settled = True
                self.crashes = CLEAN
        self._ends = {pid: at for pid, at in self._ends.items() if pid in registered}
        if launch != self._launch:
            # What was wrong may be put right: no waiting for the next try.
            self._launch, self.crashes = launch, CLEAN

    def saw_end_of(self, worker: Worker) -> bool:
        """Whether the process is gone, although the registration still lives on its lease."""
        ended_at = self._ends.get(worker.pid)
        return ended_at is not None and (worker.started_at or ended_at) <= ended_at

    def leave_alone(self) -> None:
        """The Scaler ends; the processes live on."""
        for hand in self._hands.values():
            if hand.watch is not None:
                hand.watch.close()
            if hand.launched.child is not None:
                # Or Popen would complain that the process still runs.
                hand.launched.child.returncode = 0
        self._hands.clear()

    def _registered(self, hand: Hand, age: timedelta) -> None:
        hand.registered = True
        self.crashes = self.crashes.after_registration()
        if hand.launched.child is not None:
            self.lead += (age - self.lead) * _NEWEST
            self._metrics.registered(self._type, age.total_seconds())

    def _give_up(self, hand: Hand, age: timedelta) -> None:
        """It never registered, so it has no work; a new one has better chances. For the same reason
        it may be killed if it does not hear.
        """
        now = self._clock.now()
        if hand.given_up_at is None:
            hand.given_up_at = now
            hand.launched.process.terminate()
            self._crashed(hand.started_at, f"not registered after {age.total_seconds():.0f} s")
        elif now - hand.given_up_at > self._grace and hand.launched.process.kill():
            extra = {"action": "worker_killed", "type": self._type, "pid": hand.pid}
            log.warning("killed a worker that hung at its start", extra=extra)

    def _ended(self, hand: Hand) -> None:
        self._hands.pop(hand.pid, None)
        self._ends[hand.pid] = self._clock.now()
        hand.launched.record.unlink(missing_ok=True)
        child = hand.launched.child
        # Collects the exit status as well, so that no zombie is left.
        status = child.wait() if child is not None else None
        extra = {"action": "worker_ended", "type": self._type, "pid": hand.pid, "status": status}
        log.info("worker process ended", extra=extra)
        if _died_young(hand, status):
            self._crashed(hand.started_at, _cause(status, last_words(hand.launched.log)))
        self._changed()

    def _crashed(self, started_at: datetime, detail: str) -> None:
        self.crashes = self.crashes.after_crash(started_at, self._clock.now(), detail)
        self._metrics.crashed(self._type)
        extra = {"action": "worker_crashed", "type": self._type, "rounds": self.crashes.rounds}
        log.warning("worker died at start: %s", detail, extra=extra)


def _died_young(hand: Hand, status: int | None) -> bool:
    """An end nobody asked for: before it registered, or soon after and not of its own will.

    How an adopted process ended (None) is its parent's secret.
    """
    if hand.leaving or hand.given_up_at is not None:
        return False
    return not hand.registered or (not hand.settled and status not in (0, None))


def _cause(status: int | None, words: str) -> str:
    if status is None:
        cause = "ended"
    elif status < 0:
        cause = f"killed by {signal.Signals(-status).name}"
    else:
        cause = f"exit code {status}"
    return f"{cause}: {words}" if words else cause
