"""Due flags: which (type, shard) may have due work.

A flag is a suspicion, not a count: the rows are counted by nobody. It is raised by nudges, timers
and ticks, and lowered only by a claim that came back with less than it asked for, i.e. by having
seen the end. A flag raised again while that claim was under way stays up: the claim may have looked
before the new work was there.

A flag also remembers whether the other schedulers know. A nudge was heard by all; what this one
found by itself was not, and must be told when there is no credit here to act on it; so must it be
that some of the work has been due for long.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count


class DueFlags:
    """The raised flags. At most `most` of them: beyond that the oldest goes, and a tick finds it
    again.
    """

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        # Type -> shard -> mark of the latest raising. Marks are never used twice, so that a claim
        # cannot mistake a flag that was lowered and raised again for the one it began with. The
        # order of both is the order of service: what was claimed from goes to the end.
        self._flags: dict[str, dict[str, int]] = {}
        self._marks = count(1)
        self._count = 0
        # What others do not know; whether it is that some has been due for long.
        self._untold: dict[tuple[str, str], bool] = {}

    def raise_(self, type_: str, shard: str, *, told: bool, long_due: bool = False) -> int:
        """There may be due work. `told`: the other schedulers heard it, too. `long_due`: some of it
        has been due for long. Returns the mark.
        """
        shards = self._flags.setdefault(type_, {})
        self._count += shard not in shards
        mark = shards[shard] = next(self._marks)
        known_long = self._untold.get((type_, shard), False)
        if not told:
            self._untold[type_, shard] = known_long or long_due
        elif long_due or not known_long:
            self._untold.pop((type_, shard), None)
        if self._count > self._most:
            self._forget_oldest()
        return mark

    def is_raised(self, type_: str, shard: str) -> bool:
        return shard in self._flags.get(type_, {})

    def types(self) -> list[str]:
        """The types with a raised flag, in the order in which they want service."""
        return list(self._flags)

    def shards(self, type_: str) -> list[str]:
        """The shards with a raised flag for the type, in the order in which they want service."""
        return list(self._flags.get(type_, ()))

    def mark(self, type_: str, shard: str) -> int | None:
        """The mark of the latest raising; None: the flag is down."""
        return self._flags.get(type_, {}).get(shard)

    def begin(self, type_: str, shard: str) -> int:
        """A claim begins: type and shard go to the end of the line. Returns the mark for `end`."""
        shards = self._flags[type_] = self._flags.pop(type_)
        mark = shards[shard] = shards.pop(shard)
        return mark

    def end(self, type_: str, shard: str, mark: int, *, exhausted: bool) -> bool:
        """A claim ended. Lowers the flag if it saw the end and nothing was raised since `mark`.

        Returns whether the flag is down.
        """
        now = self._flags.get(type_, {}).get(shard)
        if exhausted and now == mark:
            self._lower(type_, shard)
            return True
        return now is None

    def untold(self, keeps: Callable[[str, str], bool]) -> dict[tuple[str, bool], list[str]]:
        """By shard and whether for long, the types that only this scheduler knows of, but for those
        it `keeps` to itself. They count as told from here on.
        """
        found: dict[tuple[str, bool], list[str]] = {}
        for (type_, shard), long_due in sorted(self._untold.items()):
            if not keeps(type_, shard):
                del self._untold[type_, shard]
                found.setdefault((shard, long_due), []).append(type_)
        return found

    def _forget_oldest(self) -> None:
        type_ = next(iter(self._flags))
        self._lower(type_, next(iter(self._flags[type_])))

    def _lower(self, type_: str, shard: str) -> None:
        shards = self._flags[type_]
        del shards[shard]
        self._count -= 1
        self._untold.pop((type_, shard), None)
        if not shards:
            del self._flags[type_]
