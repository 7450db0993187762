"""Due flags: which (type, shard) may have due work.

A flag is a suspicion, not a count: the rows are counted by nobody. It is raised by nudges, timers
and ticks, and lowered only by a claim that came back with less than it asked for, i.e. by having
seen the end. A flag raised again while that claim was under way stays up: the claim may have looked
before the new work was there.

A flag also remembers whether the other schedulers know. A nudge was heard by all; what this one
found by itself was not, and must be told when there is no credit here to act on it; so must it be
that some of the work has been due for long.

And it remembers the nudges that raised it, as long as it was nothing else and they are few. When
another scheduler says that it has taken the work of all of them, the flag goes down: else whoever
has no credit now would look for that work as soon as a worker's next grab comes to it, and at the
rate of lone jobs every other claim would be for nothing. By name, since the other one may have
looked before it heard the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from math import inf

#: Nudges that a flag remembers. Of more there is a stream, and a claim will find something.
MOST_NUDGES = 8


@dataclass(slots=True)
class _Flag:
    mark: int
    """Of the latest raising."""
    since: float
    """When it was first raised, or somebody last said to have taken some of the work."""
    nudges: set[int] | None
    """The names of all that raised it; None: something without a name did, or too many."""


class DueFlags:
    """The raised flags. At most `most` of them: beyond that the oldest goes, and a tick finds it
    again.
    """

    def __init__(self, most: int = 50_000, now: Callable[[], float] = lambda: -inf) -> None:
        self._most, self._now = most, now
        # By type, then shard. Marks are never used twice, so that a claim cannot mistake a flag
        # that was lowered and raised again for the one it began with. The order of both is the
        # order of service: what was claimed from goes to the end.
        self._flags: dict[str, dict[str, _Flag]] = {}
        self._marks = count(1)
        self._count = 0
        # What others do not know; whether it is that some has been due for long.
        self._untold: dict[tuple[str, str], bool] = {}

    def raise_(
        self, type_: str, shard: str, *, told: bool, long_due: bool = False, nudge: int = 0
    ) -> int:
        """There may be due work. `told`: the other schedulers heard it, too. `long_due`: some of it
        has been due for long. `nudge`: the name of the nudge that said so, if it has one. Returns
        the mark.
        """
        mark = next(self._marks)
        self._raise(type_, shard, mark, 0 if long_due else nudge)
        known_long = self._untold.get((type_, shard), False)
        if not told:
            self._untold[type_, shard] = known_long or long_due
        elif long_due or not known_long:
            self._untold.pop((type_, shard), None)
        if self._count > self._most:
            self._forget_oldest()
        return mark

    def _raise(self, type_: str, shard: str, mark: int, nudge: int) -> None:
        shards = self._flags.setdefault(type_, {})
        flag = shards.get(shard)
        if flag is None:
            self._count += 1
            shards[shard] = _Flag(mark, self._now(), {nudge} if nudge else None)
            return
        flag.mark = mark
        if flag.nudges is not None and nudge and len(flag.nudges) < MOST_NUDGES:
            flag.nudges.add(nudge)
        else:
            flag.nudges = None

    def is_raised(self, type_: str, shard: str) -> bool:
        return shard in self._flags.get(type_, {})

    def __len__(self) -> int:
        return self._count

    def wants(self, type_: str) -> bool:
        """Whether a flag of the type is up."""
        return type_ in self._flags

    def types(self) -> list[str]:
        """The types with a raised flag, in the order in which they want service."""
        return list(self._flags)

    def shards(self, type_: str) -> list[str]:
        """The shards with a raised flag for the type, in the order in which they want service."""
        return list(self._flags.get(type_, ()))

    def mark(self, type_: str, shard: str) -> int | None:
        """The mark of the latest raising; None: the flag is down."""
        flag = self._flags.get(type_, {}).get(shard)
        return None if flag is None else flag.mark

    def since(self, type_: str, shard: str) -> float:
        """Since when a flag is up without word that somebody serves it."""
        return self._flags[type_][shard].since

    def nudges(self, type_: str, shard: str) -> frozenset[int]:
        """The nudges that raised the flag; none if something else did, too."""
        flag = self._flags.get(type_, {}).get(shard)
        return frozenset(() if flag is None else flag.nudges or ())

    def served(self, type_: str, shard: str, nudges: Collection[int]) -> None:
        """Another took work, and all that these nudges told of: without others the flag goes
        down.
        """
        flag = self._flags.get(type_, {}).get(shard)
        if flag is None:
            return
        flag.since = self._now()
        if flag.nudges is not None:
            flag.nudges.difference_update(nudges)
            if not flag.nudges:
                self._lower(type_, shard)

    def begin(self, type_: str, shard: str) -> int:
        """A claim begins: type and shard go to the end of the line. Returns the mark for `end`."""
        shards = self._flags[type_] = self._flags.pop(type_)
        flag = shards[shard] = shards.pop(shard)
        return flag.mark

    def end(
        self, type_: str, shard: str, mark: int, *, exhausted: bool, nudges: Collection[int] = ()
    ) -> bool:
        """A claim ended that began with these `nudges`. Lowers the flag if it saw the end and
        nothing was raised since `mark`.

        Returns whether the flag is down.
        """
        flag = self._flags.get(type_, {}).get(shard)
        if flag is None:
            return True
        if exhausted and flag.mark == mark:
            self._lower(type_, shard)
            return True
        if not exhausted:
            flag.nudges = None  # there is more, or what it had locked is free again
        elif flag.nudges is not None:
            flag.nudges.difference_update(nudges)
        return False

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
