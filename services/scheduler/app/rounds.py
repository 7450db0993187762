"""The rounds of one shard: its duties, each at its own interval, while we are its keeper.

A shard has two rounds, so that what needs etcd cannot hold up what does not: one for times (slots,
schedules) and one for repairs (sweep, rescue, expiry).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf

from services.mesh.clock import Clock
from services.mesh.runtime import Backoff, Counts, Loop, until_beat

#: A shard or etcd that comes back should not wait for us longer than this.
BACKOFF = Backoff(first=0.2, ceiling=2.0)


@dataclass(frozen=True, slots=True)
class Duty:
    """Something to do now and then, on the beat, if it is wanted. `every` 0: with each pass."""

    do: Callable[[], Awaitable[Counts]]
    every: float = 0.0
    wanted: Callable[[], bool] = lambda: True


class Rounds(Loop):
    """Runs duties for as long as `keeps()` says that the shard is ours and can be asked."""

    def __init__(
        self,
        name: str,
        interval: float,
        duties: Sequence[Duty],
        keeps: Callable[[], bool],
        clock: Clock,
    ) -> None:
        super().__init__(name, interval, backoff=BACKOFF)
        self._duties = duties
        self._keeps, self._clock = keeps, clock
        self._due = [0.0] * len(duties)

    def restart(self) -> None:
        """Do everything at once: we have just become the keeper, or the shard is back."""
        self._due = [0.0] * len(self._duties)
        self.nudge()

    def rest(self) -> float:
        """Until the next duty: a nudge, which may do little, must not put the others off."""
        now = self._clock.monotonic()
        # What was due and not done was not wanted, or the shard is not ours.
        waits = (due - now for due in self._due if due > now)
        return min(self._interval, max(self._interval / 10, min(waits, default=inf)))

    async def run_once(self) -> Counts:
        """Do what is due. A duty that fails does not keep the others from being done."""
        counts: Counter[str] = Counter()
        failure: Exception | None = None
        # Passes are not exactly an interval apart; what is nearly due would wait for a whole one.
        slack = self._interval / 5
        for index, duty in enumerate(self._duties):
            due = self._due[index] <= self._clock.monotonic() + slack
            if due and duty.wanted() and self._keeps():
                try:
                    counts.update(await duty.do())
                    every = until_beat(duty.every) if duty.every else 0.0
                    self._due[index] = self._clock.monotonic() + every
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return counts
