"""Jobs of one `enqueue_many` that wait for each other, before any of them has an id.

A job names the ones it waits for by their `NewJob`. What travels in the same message is named there
by its number; what went before by its id, once that is known. Only jobs that came before can be
named, so there are no cycles, and no batch ever waits for a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobmesh.errors import CallError, InputError, JobmeshError, call_error
from jobmesh.options import NewJob
from jobmesh.ties import After, waits_of

if TYPE_CHECKING:
    from jobmesh.client.bulk import Parcel
    from jobmesh.client.submission import Ack, Submission
    from jobmesh.v1.enqueue_service_pb2 import EnqueueItem
    from jobmesh.v1.job_pb2 import ParentFailurePolicy

    Policies = Mapping[str, ParentFailurePolicy.ValueType]

#: The contract's bound of a chain within one message; longer ones go in several.
LONGEST_CHAIN = 50
PARENT_NOT_STORED = "PARENT_NOT_STORED"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
#: What says nothing of whether a job is stored, where no reason does.
OPEN = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED", "UNKNOWN"})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job of a call is: its parcel, and its number there."""

    parcel: Parcel
    index: int

    @property
    def ack(self) -> Ack:
        return self.parcel.acks[self.index]


@dataclass(frozen=True, slots=True)
class Parent:
    """One of this call that a job waits for."""

    place: Place
    policy: ParentFailurePolicy.ValueType


@dataclass(slots=True)
class Waits:
    """What a job waits for: what is stored already, and what this call stores."""

    stored: list[After] = field(default_factory=list)
    fresh: list[After] = field(default_factory=list)

    @classmethod
    def of(cls, new: NewJob) -> Waits:
        waits = cls()
        for one in waits_of(new.after):
            (waits.fresh if isinstance(one.job, NewJob) else waits.stored).append(one)
        return waits


def note_place(new: NewJob, parcel: Parcel) -> None:
    """Remember, with the job itself, where it will be: a table of all jobs would have no end."""
    object.__setattr__(new, "_place", (parcel, len(parcel.acks)))


def parents_of(call: object, waits: Sequence[After], policies: Policies) -> list[Parent]:
    """InputError if one was not given before, in the same call."""
    parents: list[Parent] = []
    for wait in waits:
        assert isinstance(wait.job, NewJob)
        place = wait.job._place and Place(*wait.job._place)
        if place is None or place.parcel.call is not call:
            raise InputError("after: names a job that does not come before it in this call")
        parents.append(Parent(place, policies[wait.on_failure]))
    return parents


def depth_in(parcel: Parcel, parents: Sequence[Parent]) -> int:
    """How long the chain is, within the parcel, that a job with these parents would end."""
    depths = parcel.depths
    here = (parent.place for parent in parents if parent.place.parcel is parcel)
    return max((depths.get(place.index, 0) + 1 for place in here), default=0)


def lost_parent(parents: Sequence[Parent]) -> Ack | None:
    """The ack of a job that cannot be sent, since one it waits for has no id by now."""
    from jobmesh.client.submission import Ack

    for parent in parents:
        if (error := parent.place.ack.error) is not None:
            return Ack(error=_orphaned(error))
    return None


def _orphaned(error: JobmeshError) -> CallError:
    """What is told of a job that was not sent, after this error of its parent."""
    from jobmesh.client.submission import NOT_STORED

    reason = error.reason if isinstance(error, CallError) else ""
    fate = "was not stored"
    if isinstance(error, CallError) and error.status in OPEN and reason not in NOT_STORED:
        fate, reason = "may or may not be stored", OUTCOME_UNKNOWN
    text = f"not sent: it waits for a job that {fate}: {error}"
    metadata = {"parent_reason": reason} if reason else None
    return call_error("FAILED_PRECONDITION", text, reason=PARENT_NOT_STORED, metadata=metadata)


def tie(items: Sequence[EnqueueItem], submissions: Sequence[Submission], parcel: Parcel) -> None:
    """Name the parents of each item: by id those that are stored, by number those beside it."""
    numbers = {submission.index: n for n, submission in enumerate(submissions)}
    for item, submission in zip(items, submissions, strict=True):
        # Those of earlier parcels first: the same order, and so the same job, whenever it is sent.
        for parent in sorted(submission.parents, key=lambda one: one.place.parcel is parcel):
            place = parent.place
            if place.ack.id:
                item.job.dependencies.add(job_id=place.ack.id, on_failure=parent.policy)
            else:
                item.item_dependencies.add(item=numbers[place.index], on_failure=parent.policy)
