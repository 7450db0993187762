"""Names of all subjects of the mesh, in one place.

A type's name may contain dots; it is always the last part of a subject, so `>` covers it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

#: Queue group of the schedulers: a grab goes to one of them.
SCHEDULERS = "schedulers"

_TOKENS = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_PATTERN = re.compile(r"([^\s.*>]+|\*)(\.([^\s.*>]+|\*))*(\.>)?|>")


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of one mesh, under its prefix."""

    prefix: str = "jm"

    def __post_init__(self) -> None:
        _checked(self.prefix)

    def due(self, type_: str) -> str:
        """Something became due: to all schedulers."""
        return f"{self.prefix}.due.{_checked(type_)}"

    @property
    def all_due(self) -> str:
        return f"{self.prefix}.due.>"

    def grab(self, type_: str) -> str:
        """A worker asks for work: to one scheduler."""
        return f"{self.prefix}.grab.{_checked(type_)}"

    @property
    def all_grabs(self) -> str:
        return f"{self.prefix}.grab.>"

    def grab_at(self, member_id: str) -> str:
        """A worker answers the call of this scheduler with a grab; or grabs where it was last given
        work, at an Orchestrator that has grabs on loan.
        """
        return f"{self.prefix}.grab_at.{_checked(member_id)}"

    def recall(self, type_: str) -> str:
        """A scheduler wants the grabs that it has lent: to all Orchestrators."""
        return f"{self.prefix}.recall.{_checked(type_)}"

    @property
    def all_recalls(self) -> str:
        return f"{self.prefix}.recall.>"

    def served_at(self, scheduler_id: str) -> str:
        """The work that some nudges told of was taken: to a scheduler that heard them, too."""
        return f"{self.prefix}.served_at.{_checked(scheduler_id)}"

    def call(self, type_: str) -> str:
        """A scheduler is short of room for due work: to all workers of the type."""
        return f"{self.prefix}.call.{_checked(type_)}"

    def withdraw(self, type_: str) -> str:
        """A worker takes a grab back: to all schedulers and Orchestrators, for it does not know who
        has it.
        """
        return f"{self.prefix}.withdraw.{_checked(type_)}"

    @property
    def all_withdrawals(self) -> str:
        return f"{self.prefix}.withdraw.>"

    def hint(self, shard: str) -> str:
        """Transitions that a shard committed."""
        return f"{self.prefix}.hint.{_checked(shard)}"

    @property
    def all_hints(self) -> str:
        return f"{self.prefix}.hint.>"

    def progress(self, shard: str) -> str:
        """What running handlers of a shard's jobs said."""
        return f"{self.prefix}.progress.{_checked(shard)}"

    @property
    def all_progress(self) -> str:
        return f"{self.prefix}.progress.>"

    def ended(self, shard: str) -> str:
        """Jobs of a shard have ended that others wait for: to all schedulers."""
        return f"{self.prefix}.ended.{_checked(shard)}"

    @property
    def all_ended(self) -> str:
        return f"{self.prefix}.ended.>"

    def cancel(self, worker_id: str) -> str:
        """Attempts this worker should stop."""
        return f"{self.prefix}.cancel.{_checked(worker_id)}"

    def tail(self, subject: str) -> str:
        """What follows prefix and verb: the type, shard or worker of a subject made here."""
        return subject[len(self.prefix) + 1 :].partition(".")[2]


def check_pattern(pattern: str) -> None:
    """Refuse what nobody can subscribe to."""
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(f"{pattern!r} is no subject to subscribe to")


@lru_cache(maxsize=1024)  # a subject is made for every message
def _checked(name: str) -> str:
    """Refuse what would make another subject, or a pattern, out of a name."""
    if not _TOKENS.fullmatch(name):
        raise ValueError(f"{name!r} cannot be part of a subject: no spaces, wildcards, empty parts")
    return name
