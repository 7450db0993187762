"""Where looks at `queue` and `in_flight` begin, and when that is looked at.

What has left these tables stays in their indexes until a vacuum may remove it. While somebody holds
a transaction open (a backup, a forgotten session) none may, and whoever looks for what lives walks
over all that was done since. So every look begins at a floor: no job that waits is due earlier, and
none in flight was dispatched earlier, but for what is noted beside it: types that have older work
(a backlog, a type without workers), and the times when a few long attempts were dispatched.

The keeper of the shard raises the floors, for as long as there is much that is dead. Who puts a job
into the queue that has been due for long (a sweep, a rescue, a late run of a schedule) notes its
type, in the same transaction. A version from before the floors does not, and clocks may be set
back. So everything is looked at all the same from time to time: again after so many times what the
last such look took. Where looks are quick, which is the rule, every one is at everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from services.mesh.store.arrays import Texts, Times

#: So many attempts may run on below the floor; if there are more, it stays below the others.
MOST_LONG_AGO = 200


@dataclass(frozen=True, slots=True)
class FloorRules:
    """Times in seconds."""

    dead: int = 10_000
    """From so many dead rows on floors are raised."""
    apart: float = 3.0
    """At most so often: each time leaves a dead row, which all looks at the floors walk over."""
    quick: float = 0.01
    """A look at everything that took no longer may be had again at once."""
    factor: float = 300.0
    """Another one is followed by so many times what it took without one."""
    most: float = 60.0
    """Everything is looked at this often, whatever it takes."""


class FloorPace:
    """When a shard's keeper looks at everything, and when it raises the floors."""

    __slots__ = ("_everything_at", "_raise_at", "_rules")

    def __init__(self, rules: FloorRules) -> None:
        self._rules = rules
        self._everything_at = self._raise_at = float("-inf")

    def everything(self, now: float) -> bool:
        """Whether the look that begins now shall be at everything."""
        return now >= self._everything_at

    def looking(self, now: float) -> None:
        """A look at everything begins. One that does not come to its end must not be repeated at
        once: it would not the next time either.
        """
        self._everything_at = now + self._rules.most

    def looked(self, now: float, took: float) -> None:
        """Everything was looked at, for so long in the server."""
        rest = self._rules.factor * took if took > self._rules.quick else 0.0
        self._everything_at = now + min(self._rules.most, rest)

    def again(self) -> None:
        """What the look found could not be said: the next one shall find it again."""
        self._everything_at = float("-inf")

    def raises(self, now: float, dead: int) -> bool:
        """Whether to raise the floors now, where so many rows are dead."""
        if dead < self._rules.dead or now < self._raise_at:
            return False
        self._raise_at = now + self._rules.apart
        return True


def lowering(
    types: Sequence[str], times: Sequence[datetime], dispatch_time: datetime | None = None
) -> dict[str, object]:
    """Work of these types has been due since these times; one was dispatched at that."""
    return {"types": Texts(types), "times": Times(list(times)), "dispatch_time": dispatch_time}
