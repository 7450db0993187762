"""Runs attempts on executors that attached themselves, in whatever language they are written.

To the rest of the worker this is an executor like any other: it is given an attempt and says how
that ended; leases, locks, grabs, timeouts, outputs and reports are not its business.

An executor that goes, in whatever way, loses what it had in hand. That is nobody's fault: it costs
the job no attempt, up to the budget for losses, after which it does, so that a job that kills its
executors ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from services.mesh.errors import (
    AttachRefused,
    Draining,
    InvalidField,
    MeshError,
    NotFound,
    Overloaded,
)
from services.mesh.jobs.model import Payload
from services.worker.app.conversation import AttachedExecutor, End, Handed, Uploaded
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import (
    Failed,
    HandedBack,
    Snoozed,
    Succeeded,
    failure,
)
from services.worker.domain.guests import Guest, GuestBook
from services.worker.ports import Executor, Objects, Observer, Returned

log = logging.getLogger(__name__)

NO_EXECUTOR = HandedBack("no executor", 0.2)
STORE_AWAY = HandedBack("input store away", 5.0)
SHORTEST_URL_SECONDS = 24 * 3600.0
LONGEST_URL_SECONDS = 7 * 24 * 3600.0
URL_MARGIN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class AttachSettings:
    is_open: bool = False
    """Whether executors may attach at all."""
    grace: float = 2.0
    """How long an executor may take to end an attempt that was stopped, in seconds."""
    run_timeout: float | None = None
    """The limit of attempts whose jobs set none."""


class Host(Protocol):
    """The worker that executors attach to."""

    def serves_itself(self, type_: str) -> bool: ...

    def in_hand(self, types: Collection[str]) -> int:
        """How many attempts of these types it has."""
        ...

    def lend(self, capacity: Mapping[str, int], room: Callable[[str], int]) -> None:
        """Executors can take so much, by type; `room` knows how much more at any moment."""
        ...


class AttachDesk(Executor):
    """Takes executors in, and runs attempts on them."""

    #: Attempts whose inputs are objects come with a URL for it.
    reads_objects = True

    def __init__(
        self, host: Callable[[], Host], objects: Objects, settings: AttachSettings
    ) -> None:
        self._host = host
        self._objects = objects
        self._settings = settings
        self._draining = False
        self._book = GuestBook()
        self._ends: dict[Guest, AttachedExecutor] = {}
        #: Attempts that were given to an executor and are still run.
        self._placed = 0

    # --- executors

    def enter(self, name: str, types: Collection[str]) -> AttachedExecutor:
        """Take an executor in; it has no credit yet."""
        if not self._settings.is_open:
            raise AttachRefused
        if self._draining:
            raise Draining
        taken = sorted(type_ for type_ in types if self._host().serves_itself(type_))
        if taken:
            raise AttachRefused(f"type {taken[0]!r} is served by this worker's own handlers")
        guest = Guest(name, types)
        if not self._book.enter(guest):
            raise Overloaded("too many different types were attached to this worker")
        end = self._ends[guest] = AttachedExecutor(guest, self.changed)
        extra = {"action": "executor_attached", "executor": name, "types": sorted(types)}
        log.info("an executor attached", extra=extra)
        self.changed()
        return end

    def leave(self, end: AttachedExecutor) -> None:
        """It is gone: what it had in hand is lost."""
        guest = end.guest
        extra = {"action": "executor_gone", "executor": guest.name, "count": len(guest.in_hand)}
        log.info("an executor is gone", extra=extra)
        self._book.leave(guest)
        self._ends.pop(guest, None)
        end.lose_all()
        self.changed()

    def drain(self) -> None:
        """Tell all to finish and to leave."""
        self._draining = True
        for end in tuple(self._ends.values()):
            end.finish()

    def changed(self) -> None:
        """What executors can take is not what it was."""
        self._host().lend(self._book.capacities(), self._room)

    def _room(self, type_: str) -> int:
        # What the worker has in hand and no executor has been given yet needs room, too.
        waiting = self._host().in_hand(self._book.known) - self._placed
        return self._book.room(type_, max(0, waiting))

    def __len__(self) -> int:
        return len(self._book)

    # --- attempts

    def wants_file(self, type_: str) -> bool:
        return False

    async def run(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | Succeeded | Failed | HandedBack | Snoozed:
        guest = self._book.choose(attempt.type, (attempt.key, attempt.fence))
        if guest is None:
            return NO_EXECUTOR
        self._placed += 1
        try:
            said = await self._run_on(self._ends[guest], attempt, observer)
        finally:
            self._placed -= 1
        return await self._uploaded(attempt, said) if isinstance(said, Uploaded) else said

    async def _run_on(self, end: AttachedExecutor, attempt: Attempt, observer: Observer) -> End:
        try:
            handed = await self._handed(attempt)
        except BaseException as error:
            end.guest.in_hand.discard((attempt.key, attempt.fence))
            if isinstance(error, MeshError):
                return STORE_AWAY
            raise
        if end.guest not in self._ends:
            return NO_EXECUTOR
        return await end.run(handed, observer, self._settings.grace)

    async def _handed(self, attempt: Attempt) -> Handed:
        limit = attempt.run_timeout or self._settings.run_timeout
        # It may extend its time, and still has to put its output somewhere then.
        seconds = max(limit or 0.0, SHORTEST_URL_SECONDS) + URL_MARGIN_SECONDS
        seconds = min(seconds, LONGEST_URL_SECONDS)
        input_url = output_url = ""
        if attempt.object is not None:
            input_url = await self._objects.input_url(attempt.object, seconds)
        with suppress(MeshError):
            # Without one it can still return what fits into a message.
            output_url = await self._objects.output_url(attempt, seconds)
        return Handed(attempt, limit, input_url, output_url)

    async def _uploaded(self, attempt: Attempt, said: Uploaded) -> Succeeded | Failed | HandedBack:
        """The output, if it is where it should be."""
        try:
            found = await self._objects.uploaded(attempt)
        except NotFound:
            text = "the executor reported an output that it did not put where output_url said"
            return Failed(failure("OutputMissing", text))
        except MeshError as error:
            log.warning("cannot look for an output: %s", error, extra={"action": "output_unseen"})
            return HandedBack("output store away", STORE_AWAY.delay)
        if said.size not in (0, found.size):
            text = f"the output has {found.size} bytes, the executor reported {said.size}"
            return Failed(failure("OutputMismatch", text))
        ref = replace(found, sha256=said.sha256 or found.sha256)
        return Succeeded(Payload.stored(ref, said.content_type))


def check_types(types: Collection[str]) -> None:
    """InvalidField unless each is named once."""
    if len(set(types)) < len(types):
        raise InvalidField("hello.types", "a type stands twice")
