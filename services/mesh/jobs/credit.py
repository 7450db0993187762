"""The credit book: room that workers offered, by type, in the order in which they offered it. Kept
by schedulers; Orchestrators have a book of their own for what they have on loan.

A grab offers the room of one worker for one type, and is answered once. Three things may happen to
it: it is taken for a claim and settled with what the claim brought; it is replaced by a newer grab
of the same worker and type; or it expires. The book keeps a worker's word, never more:

* A grab brings at most the jobs it offered room for.
* Of one worker and type at most one grab is taken at a time. A newer grab that comes meanwhile was
  written without knowing what the taken one brings, so that is subtracted from it.
* A claim that brought nothing costs a worker neither its credit nor its place.
* A worker that is gone stays gone: it comes back under another id. A grab of it that was somewhere
  else meanwhile, on loan or on its way, is not taken in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Grab:
    """A worker's request for work."""

    worker_id: str
    type: str
    credit: int
    """How many attempts it has room for; at least 1 while parked."""
    number: int
    """Grows with each grab of this worker and type; the answer repeats it."""
    inbox: str
    """Where the answer goes."""
    waits: bool = False
    """Jobs may be sent ahead of their time: the worker starts none before it."""
    columns: bool = False
    """The worker reads jobs that differ in little in columns."""
    lend_at: str = ""
    """The Orchestrator that had it on loan would have it again, there."""


#: Of workers that are gone so many are remembered: for longer than a grab can be elsewhere.
MOST_GONE = 1_000


class GoneWorkers:
    """Those that were lost last."""

    def __init__(self) -> None:
        self._gone: dict[str, None] = {}

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._gone

    def add(self, worker_id: str) -> None:
        self._gone[worker_id] = None
        if len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]


@dataclass(frozen=True, slots=True)
class _Parked:
    grab: Grab
    until: float


class CreditBook:
    """Parked grabs, at most `most` of them. Times are the caller's, in seconds; the book only
    compares them.
    """

    def __init__(self, park_seconds: float, most: int = 100_000) -> None:
        self._park_seconds, self._most = park_seconds, most
        self._count = 0
        # By type, then worker; the order of the inner one is the order of service.
        self._parked: dict[str, dict[str, _Parked]] = {}
        self._taken: dict[tuple[str, str], _Parked] = {}
        # Taken grabs that a newer one has replaced: they may still bring jobs, but not come back.
        self._replaced: set[tuple[str, str]] = set()
        self._credit: dict[str, int] = {}
        self._gone = GoneWorkers()

    def park(self, grab: Grab, now: float) -> bool:
        """Take a grab in. False if it is older than what the book has, offers nothing (it then
        only withdraws the one before), or there is no space.

        A replacement keeps its worker's place in line: room that grew must not cost a turn.
        """
        if grab.worker_id in self._gone:
            return False
        key = (grab.type, grab.worker_id)
        known = (self._parked.get(grab.type, {}).get(grab.worker_id), self._taken.get(key))
        if any(before is not None and before.grab.number > grab.number for before in known):
            return False
        if key in self._taken:
            self._replaced.add(key)
        if grab.credit < 1 or (known[0] is None and self._count >= self._most):
            if known[0] is not None:
                self._remove(*key)
            return False
        line = self._parked.setdefault(grab.type, {})
        self._place(line, _Parked(grab, now + self._park_seconds))
        return True

    def take(self, type_: str) -> Grab | None:
        """The grab whose turn it is, now in the caller's hands until `settle`."""
        for worker_id, parked in self._parked.get(type_, {}).items():
            if (type_, worker_id) not in self._taken:
                self._remove(type_, worker_id)
                self._taken[type_, worker_id] = parked
                return parked.grab
        return None

    def settle(self, grab: Grab, used: int) -> Grab | None:
        """End a `take`: `used` jobs were sent to the worker.

        Returns a newer grab of the worker that has no room left after this, if there is one: it
        wants an empty answer, so that the worker says anew how much it has.
        """
        if used > grab.credit:
            raise ValueError(f"{used} jobs sent on a credit of {grab.credit}")
        key = (grab.type, grab.worker_id)
        taken = self._taken.get(key)
        if taken is None or taken.grab != grab:
            return None  # the worker is gone, or came back meanwhile
        del self._taken[key]
        if key in self._replaced:
            self._replaced.discard(key)
            newer = self._parked.get(grab.type, {}).get(grab.worker_id)
            return self._reduce(newer, used) if newer is not None and used else None
        if used == 0:
            self._put_first(taken)
        return None

    def expire(self, now: float) -> list[Grab]:
        """Remove and return the grabs that were parked for too long."""
        late = [p.grab for p in self._all() if p.until <= now]
        for grab in late:
            self._remove(grab.type, grab.worker_id)
        return late

    def drop_worker(self, worker_id: str) -> int:
        """Forget a worker that is gone, for good; how many of its grabs were parked."""
        self._gone.add(worker_id)
        types = [type_ for type_, line in self._parked.items() if worker_id in line]
        for type_ in types:
            self._remove(type_, worker_id)
        for key in [key for key in self._taken if key[1] == worker_id]:
            del self._taken[key]
            self._replaced.discard(key)
        return len(types)

    def take_out(self, type_: str) -> list[Grab]:
        """Remove and return what is parked for a type."""
        grabs = [parked.grab for parked in self._parked.get(type_, {}).values()]
        for grab in grabs:
            self._remove(type_, grab.worker_id)
        return grabs

    def clear(self) -> list[Grab]:
        """Remove and return all that is parked."""
        grabs = [parked.grab for parked in self._all()]
        self._parked.clear()
        self._credit.clear()
        self._count = 0
        return grabs

    def credit_of(self, type_: str) -> int:
        """The room that is parked for a type and not taken."""
        return self._credit.get(type_, 0)

    def types(self) -> list[str]:
        """The types with parked credit."""
        return list(self._parked)

    def parked(self) -> list[Grab]:
        """All parked grabs, by type in order of service."""
        return [parked.grab for parked in self._all()]

    # --- the inner order

    def _all(self) -> Iterator[_Parked]:
        for line in self._parked.values():
            yield from line.values()

    def _place(self, line: dict[str, _Parked], parked: _Parked) -> None:
        grab = parked.grab
        before = line.get(grab.worker_id)
        line[grab.worker_id] = parked
        self._count += before is None
        gained = grab.credit - (before.grab.credit if before else 0)
        self._credit[grab.type] = self._credit.get(grab.type, 0) + gained

    def _put_first(self, parked: _Parked) -> None:
        type_ = parked.grab.type
        rest = self._parked.get(type_, {})
        line: dict[str, _Parked] = {}
        self._place(line, parked)
        line.update(rest)
        self._parked[type_] = line

    def _reduce(self, newer: _Parked, used: int) -> Grab | None:
        grab = newer.grab
        if grab.credit <= used:
            self._remove(grab.type, grab.worker_id)
            return grab
        smaller = replace(grab, credit=grab.credit - used)
        self._place(self._parked[grab.type], replace(newer, grab=smaller))
        return None

    def _remove(self, type_: str, worker_id: str) -> None:
        parked = self._parked[type_].pop(worker_id)
        self._credit[type_] -= parked.grab.credit
        self._count -= 1
        self._drop_empty(type_)

    def _drop_empty(self, type_: str) -> None:
        if not self._parked.get(type_, True):
            del self._parked[type_]
            self._credit.pop(type_, None)
