"""Which work is due now, and which in a moment: what schedulers are nudged about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

#: Schedulers read further ahead than this all the time; what is due later needs no nudge.
SOON = timedelta(seconds=5)
#: Schedulers look further back than this all the time; what was due before that they must be told.
LONG = timedelta(seconds=0.35)


def is_long(took: float) -> bool:
    """Whether what took so many seconds to be stored has been due for long when it is seen."""
    return took > LONG.total_seconds()


@dataclass(frozen=True, slots=True)
class Soon:
    """Work that is due in a moment."""

    first: datetime
    """When the earliest of it is due."""
    more: bool = False
    """Some is due at other times, soon after."""

    def and_at(self, due: datetime) -> Soon:
        return self if due == self.first else Soon(min(self.first, due), more=True)


NOTHING_SOON: Mapping[str, Soon] = MappingProxyType({})


@dataclass(slots=True)
class DueWork:
    """By type."""

    now: set[str] = field(default_factory=set)
    soon: dict[str, Soon] = field(default_factory=dict)
    long: set[str] = field(default_factory=set)
    """Those of `now` of which some has been due for long."""

    def __bool__(self) -> bool:
        return bool(self.now or self.soon)


def due_work(jobs: Iterable[tuple[str, datetime | None, datetime]], took: float = 0.0) -> DueWork:
    """Sort jobs `(type, due time, the shard's time when it stored them)`; one without a due time is
    not waiting. Nobody saw them before the statement ended, at most so many seconds later.
    """
    work, unseen = DueWork(), timedelta(seconds=took)
    for type_, due, stored in jobs:
        if due is None:
            continue
        if stored + unseen - due > LONG:
            work.now.add(type_)
            work.long.add(type_)
        elif due <= stored:
            work.now.add(type_)
        elif due - stored <= SOON:
            known = work.soon.get(type_)
            work.soon[type_] = known.and_at(due) if known else Soon(due)
    return work
