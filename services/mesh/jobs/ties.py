"""What ties a job to others: the jobs it waits for, and the key that it alone may hold. Pure.

A job with dependencies is BLOCKED until every parent has ended *well enough*: with success, or in
any way if the policy towards that parent is RUN. A parent that ends otherwise decides at once,
whatever the others do. A cycle cannot be: an id is made when its job is stored, so a job can only
name jobs that were stored before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, unique
from typing import Any
from uuid import UUID

from services.mesh.jobs.record import record
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import TERMINAL, JobState

#: The type of the failure of a job that ended because of a parent.
PARENT_FAILED = "ParentFailed"
#: Of a parent's own failure so much is repeated in that of the jobs that waited for it.
_LONGEST_CAUSE = 500


@unique
class ParentFailurePolicy(IntEnum):
    """What becomes of a job whose parent did not succeed. The numbers are those of SQL and wire."""

    CANCEL = 1
    RUN = 2
    FAIL = 3


@unique
class UniquePolicy(IntEnum):
    """What a submission does that finds its unique key held. The numbers are those of the wire."""

    KEEP = 1
    REPLACE = 2
    REFUSE = 3


@record
class Dependency:
    """One job to wait for."""

    job_id: UUID
    on_failure: ParentFailurePolicy = ParentFailurePolicy.CANCEL

    def to_json(self) -> dict[str, Any]:
        """The form in the row."""
        return {"job": str(self.job_id), "on_failure": int(self.on_failure)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Dependency:
        """Read what `to_json` wrote."""
        return cls(UUID(data["job"]), ParentFailurePolicy(data["on_failure"]))


@record
class Ties:
    """What a new job is tied to. `waits` are those dependencies that stand in its way."""

    dependencies: tuple[Dependency, ...] = ()
    waits: tuple[Dependency, ...] = ()
    unique_key: str | None = None
    unique_policy: UniquePolicy = UniquePolicy.KEEP

    @property
    def kept_policy(self) -> int | None:
        """What the row keeps of the policy: nothing without a key."""
        return None if self.unique_key is None else int(self.unique_policy)

    def said(self) -> list[Any]:
        """What the submitter said, as JSON; `waits` are not among it."""
        named = [dependency.to_json() for dependency in self.dependencies]
        return [named, self.unique_key, int(self.unique_policy)]


@record
class Parent:
    """How a job stands that others wait for. `state` None: it is no longer there."""

    job_id: UUID
    state: JobState | None
    failure: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.state is None or self.state in TERMINAL

    @property
    def succeeded(self) -> bool:
        return self.state is JobState.SUCCEEDED

    def as_failure(self) -> Failure:
        """What is said of a job that ended because of this one."""
        if self.state is None:
            how = "is gone: it ended and was not kept, or its shard lost it"
        else:
            how = f"ended {self.state.name}"
        why = ""
        if self.failure is not None:
            why = f": {self.failure.type}: {self.failure.message}"[:_LONGEST_CAUSE]
        return Failure(PARENT_FAILED, f"job {self.job_id}, which it waited for, {how}{why}")


def open_waits(
    dependencies: Iterable[Dependency], parents: Mapping[UUID, Parent]
) -> tuple[Dependency, ...]:
    """The dependencies that keep a job from running: all whose parents did not end well enough."""

    def is_open(dependency: Dependency) -> bool:
        parent = parents[dependency.job_id]
        if dependency.on_failure is ParentFailurePolicy.RUN:
            return not parent.ended
        return not parent.succeeded

    return tuple(dependency for dependency in dependencies if is_open(dependency))
