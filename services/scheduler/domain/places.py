"""What is held of each limit, as far as a scheduler knows.

Whether a limit has a place is decided in etcd, by the worker that takes one. A scheduler only tries
not to send what would have to come back. It follows the places that are held, and adds what it has
sent itself and has not yet seen to arrive there. What other schedulers have just sent it does not
see, so they take turns (`Turn`): the first of them for a type goes at once, the others a moment
later, when they have seen what the first one did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from services.mesh.jobs.limits import key_limit, owner_of, type_limit, type_of_limit
from services.mesh.jobs.model import Claimed
from services.mesh.jobs.type_settings import TypeSettings
from services.scheduler.domain.duties import rank_of

#: What was sent and took no place for so long will not: it was refused, or got lost.
SENT_SECONDS = 2.0
#: How much later the next scheduler goes.
TURN_SECONDS = 0.05


@dataclass(slots=True)
class _Type:
    """What is known of one type."""

    held: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """By limit: place and owner."""
    sent: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    """By owner: when it was sent, and the limits it goes to; the oldest first."""
    reserved: int = 0
    """What claims under way may bring."""
    changes: int = 0
    """Counts everything that may have made room."""


class LimitBook:
    """Held places by type and limit. Times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._types: dict[str, _Type] = {}

    # --- what the watch says

    def took(self, name: str, place: str, owner: str) -> None:
        """Somebody holds a place now."""
        about = self._about(name)
        about.held[name][place] = owner
        about.sent.pop(owner, None)

    def freed(self, name: str, place: str) -> str:
        """A place is free again; of which type."""
        type_, _ = type_of_limit(name)
        about = self._about(name)
        about.held[name].pop(place, None)
        if not about.held[name]:
            del about.held[name]
        about.changes += 1
        return type_

    # --- what claims do

    def reserve(self, type_: str, count: int) -> None:
        """A claim begins that may bring so many."""
        self._types.setdefault(type_, _Type()).reserved += count

    def release(self, type_: str, count: int) -> None:
        """It has ended; what it brought was `sent`."""
        self._types[type_].reserved -= count

    def sent(self, jobs: Sequence[Claimed], now: float) -> None:
        """These go out now, and take their places when they arrive."""
        for job in jobs:
            about = self._types.setdefault(job.type, _Type())
            names = tuple(limit.name for limit in job.limits)
            about.sent[owner_of(job.id, job.fence)] = (now, names)

    def unsent(self, jobs: Sequence[Claimed]) -> None:
        """They did not go out after all."""
        for job in jobs:
            self._types[job.type].sent.pop(owner_of(job.id, job.fence), None)

    def changed(self, type_: str) -> None:
        """The limits of a type are others now."""
        self._types.setdefault(type_, _Type()).changes += 1

    # --- what is

    def room(self, settings: TypeSettings, now: float) -> int | None:
        """How many more of the type may be claimed; None: as many as wanted."""
        about = self._current(settings.type, now)
        if not settings.max_running:
            return None
        if about is None:
            return settings.max_running
        name = type_limit(settings.type)
        held = len(about.held.get(name, ())) + len(about.sent) + about.reserved
        return max(0, settings.max_running - held)

    def held_keys(self, type_: str, now: float) -> dict[UUID, int]:
        """How many places of each key are held or on their way."""
        about = self._current(type_, now)
        if about is None:
            return {}
        counts = Counter({name: len(places) for name, places in about.held.items()})
        counts.update(name for _, names in about.sent.values() for name in names)
        named = ((type_of_limit(name)[1], count) for name, count in counts.items())
        return {key: count for key, count in named if key is not None}

    def changes(self, type_: str) -> int:
        """Grows whenever there may be room that was not there before."""
        about = self._types.get(type_)
        return 0 if about is None else about.changes

    def next_expiry(self, type_: str, now: float) -> float | None:
        """In how many seconds something that was sent is given up; None: nothing is on its way."""
        about = self._types.get(type_)
        if about is None or not about.sent:
            return None
        oldest = next(iter(about.sent.values()))[0]
        return max(0.0, oldest + SENT_SECONDS - now)

    def _about(self, name: str) -> _Type:
        type_, _ = type_of_limit(name)
        return self._types.setdefault(type_, _Type())

    def _current(self, type_: str, now: float) -> _Type | None:
        about = self._types.get(type_)
        if about is None:
            return None
        while about.sent:
            owner, (when, _) = next(iter(about.sent.items()))
            if when + SENT_SECONDS > now:
                break
            del about.sent[owner]
            about.changes += 1
        return about


class Turn:
    """When it is our turn to claim of a limited type: at once, or a moment after the others."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def wait(self, type_: str, member: str, members: Collection[str], now: float) -> float:
        """In how many seconds it is; there is something to claim, and room for it."""
        since = self._since.setdefault(type_, now)
        rank = rank_of(member, type_, members)
        return max(0.0, since + rank * TURN_SECONDS - now)

    def over(self, type_: str) -> None:
        """There is nothing to claim or no room, or we have taken our turn."""
        self._since.pop(type_, None)


def limits_of(settings: TypeSettings, key: UUID | None) -> tuple[tuple[str, int], ...]:
    """The limits of one job: name and places."""
    found = []
    if settings.max_running:
        found.append((type_limit(settings.type), settings.max_running))
    if settings.max_running_per_key and key is not None:
        found.append((key_limit(settings.type, key), settings.max_running_per_key))
    return tuple(found)
