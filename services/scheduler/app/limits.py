"""Limits: what claims of limited types may take.

Soft here, strict in the workers. A claim takes at most what is left of the type's limit, and passes
over jobs whose key is full, so that few have to come back; whoever runs a job makes sure. Types
without limits pass by all of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from uuid import UUID

from services.mesh.clock import Clock
from services.mesh.jobs.limits import Limit
from services.mesh.jobs.type_settings import TypeSettings
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.store.answers import ClaimAnswer
from services.scheduler.domain.places import LimitBook, Turn, limits_of


class Limits:
    """Follows settings and places in etcd. `wake` is called when there may be room again."""

    def __init__(
        self,
        member: str,
        types: RegistryMirror[TypeSettings],
        places: RegistryMirror[str],
        clock: Clock,
        book: LimitBook | None = None,
    ) -> None:
        self._member, self._clock = member, clock
        self._types, self._places = types, places
        self.book, self._turn = book or LimitBook(), Turn()
        #: Claims that found only full keys, by (type, shard): the flag and the book as they were.
        self._stuck: dict[tuple[str, str], tuple[int, int]] = {}
        #: The book as it was when a claim was told which keys are full.
        self._told: dict[tuple[str, str], int] = {}
        self.wake: Callable[[], None] = lambda: None
        #: The schedulers, to take turns with.
        self.members: Callable[[], Collection[str]] = lambda: ()
        types.on_change(self._settings_changed)
        places.on_change(self._place_changed)

    @property
    def known(self) -> bool:
        """Whether it is known which types have limits. Before that nothing may be claimed."""
        return self._types.synced and self._places.synced

    # --- before a claim

    def settings(self, type_: str) -> TypeSettings | None:
        """The settings of a type that has limits."""
        settings = self._types.items.get(type_)
        return settings if settings is not None and settings.limited else None

    def wait(self, settings: TypeSettings, shard: str, mark: int, busy: bool) -> float:
        """In how many seconds to claim; infinite: not before something changes.

        `busy`: a claim of the type is under way, on any shard.
        """
        type_, now = settings.type, self._clock.monotonic()
        if settings.max_running_per_key and busy:
            return math.inf  # two claims could take jobs of the same key
        no_room = self.book.room(settings, now) == 0
        if no_room or self._stuck.get((type_, shard)) == (mark, self.book.changes(type_)):
            self._turn.over(type_)
            expiry = self.book.next_expiry(type_, now)
            return math.inf if expiry is None else expiry + 0.001
        return self._turn.wait(type_, self._member, self.members(), now)

    def begin(self, settings: TypeSettings, limit: int) -> int:
        """How many to claim of the `limit` that there is credit for."""
        room = self.book.room(settings, self._clock.monotonic())
        allowed = limit if room is None else min(limit, room)
        self.book.reserve(settings.type, allowed)
        self._turn.over(settings.type)
        return allowed

    def held_keys(self, type_: str, shard: str) -> dict[UUID, int]:
        """What a claim on this shard is told: how many places of each key are taken. What is given
        back from here on it does not know.
        """
        held = self.book.held_keys(type_, self._clock.monotonic())
        self._told[type_, shard] = self.book.changes(type_)
        return held

    # --- after it

    def is_stuck(self, type_: str, shard: str) -> bool:
        """Whether the last claim there found only full keys."""
        return (type_, shard) in self._stuck

    def brought(self, settings: TypeSettings, answer: ClaimAnswer) -> ClaimAnswer:
        """The claimed jobs with their limits; they count from now on."""
        jobs = [
            replace(
                job, limits=tuple(Limit(*limit) for limit in limits_of(settings, job.limit_key))
            )
            for job in answer.jobs
        ]
        self.book.sent(jobs, self._clock.monotonic())
        return replace(answer, jobs=jobs)

    def end(
        self, settings: TypeSettings, shard: str, limit: int, mark: int | None, stuck: bool
    ) -> None:
        """A claim has ended. `stuck`: what it left has no room; `mark`: the flag as it is now."""
        self.book.release(settings.type, limit)
        key = settings.type, shard
        self._stuck.pop(key, None)
        told = self._told.pop(key, self.book.changes(settings.type))
        if stuck and mark is not None:
            self._stuck[key] = (mark, told)

    # --- what etcd says

    def _settings_changed(self, type_: str) -> None:
        self.book.changed(type_)
        self.wake()

    def _place_changed(self, key: str) -> None:
        name, _, place = key.rpartition("/")
        owner = self._places.items.get(key)
        try:
            if owner is not None:
                self.book.took(name, place, owner)
            else:
                self.book.freed(name, place)
                self.wake()
        except ValueError:
            pass  # not a key of ours
