"""What a schedule does with runs that come up while earlier ones have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, unique

#: Runs of one schedule that wait for their turn at most.
MOST_WAITING = 1000


@unique
class Overlap(IntEnum):
    """What happens to a run that is due while an earlier one has not ended."""

    UNSPECIFIED = 0
    ALLOW_ALL = 1
    """It runs beside it. The default."""
    SKIP = 2
    """It is left out."""
    BUFFER_ONE = 3
    """It waits; further ones are left out."""
    BUFFER_ALL = 4
    """It waits, as do further ones, and they run one after the other."""
    CANCEL_OTHER = 5
    """The earlier one is cancelled."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What becomes of nominal times that came up."""

    runs: tuple[datetime, ...]
    """A job is made for each of these now."""
    waiting: tuple[datetime, ...] = ()
    """These come later, one at a time."""
    left_out: int = 0
    cancels: bool = False
    """The runs that have not ended are cancelled first."""


def admit(
    policy: Overlap, times: Sequence[datetime], busy: bool, waiting: Sequence[datetime] = ()
) -> Admission:
    """Decide about `times`, and those `waiting` from before, by whether a run has not ended.

    Several times at once (caught up, backfilled) overlap each other as well.
    """
    line = (*waiting, *times)
    match policy:
        case Overlap.SKIP:
            runs = () if busy else line[:1]
            return Admission(runs, left_out=len(line) - len(runs))
        case Overlap.BUFFER_ONE | Overlap.BUFFER_ALL:
            runs = () if busy else line[:1]
            room = 1 if policy is Overlap.BUFFER_ONE else MOST_WAITING
            later = line[len(runs) :][:room]
            return Admission(runs, later, len(line) - len(runs) - len(later))
        case Overlap.CANCEL_OTHER:
            return Admission(line[-1:], left_out=len(line[:-1]), cancels=busy and bool(line))
        case _:
            return Admission(line)


def look_again(waits: bool, age: timedelta) -> timedelta:
    """When to see whether a run has ended that is `age` old: the longer it took, the less often."""
    if waits:
        return min(max(age / 20, timedelta(milliseconds=200)), timedelta(seconds=5))
    return min(max(age / 10, timedelta(seconds=1)), timedelta(minutes=1))
