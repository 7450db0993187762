"""Items of one batch that wait for each other: stored round by round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from jobmesh.v1 import enqueue_service_pb2 as pb

from services.enqueue import convert
from services.enqueue.domain.chains import plan
from services.enqueue.servicer.desk import Desk, PutJobsRequest, within
from services.mesh.errors import MeshError, ParentNotStored

Put = Callable[[PutJobsRequest], Awaitable[Sequence[convert.Submitted]]]


class Settled(NamedTuple):
    """What became of jobs, whose places those are, and what is wrong with the others, by place."""

    stored: Sequence[convert.Submitted]
    order: Sequence[int]
    errors: dict[int, MeshError]


def is_chained(items: Iterable[pb.EnqueueItem]) -> bool:
    """Whether some items wait for others of the same message."""
    return any(item.item_dependencies for item in items)


async def store_all(
    desk: Desk,
    put: Put,
    namespace: str,
    items: Sequence[pb.EnqueueItem],
    numbers: Sequence[int],
) -> Settled:
    """Items by themselves. What hits them all is the error of each."""
    admitted = await desk.admit_all(namespace, items, numbers)
    try:
        stored = await put(admitted.request) if admitted.order else ()
    except MeshError as error:
        return Settled((), (), dict.fromkeys(range(len(items)), error) | admitted.errors)
    return Settled(stored, admitted.order, admitted.errors)


async def store_chained(
    desk: Desk,
    put: Put,
    namespace: str,
    items: Sequence[pb.EnqueueItem],
    numbers: Sequence[int] | None = None,
) -> Settled:
    """As `store_all`, round by round: the ids of one are the dependencies of the next."""
    numbers = range(len(items)) if numbers is None else numbers
    planned = plan([[parent.item for parent in item.item_dependencies] for item in items])
    errors: dict[int, MeshError] = {
        place: within(f"items[{numbers[place]}]", error) for place, error in planned.errors.items()
    }
    stored: dict[int, convert.Submitted] = {}
    for round_ in planned.rounds:
        ready: list[int] = []
        for place in round_:
            lost = _lost_parent(items[place], stored)
            if lost is None:
                ready.append(place)
            else:
                errors[place] = ParentNotStored(lost, _reason(lost, stored, errors))
        tied = [_tied(items[place], stored) for place in ready]
        settled = await store_all(desk, put, namespace, tied, [numbers[at] for at in ready])
        errors |= {ready[place]: error for place, error in settled.errors.items()}
        places = [ready[place] for place in settled.order]
        stored |= dict(zip(places, settled.stored, strict=True))
    return Settled(list(stored.values()), list(stored), errors)


def _lost_parent(item: pb.EnqueueItem, stored: Mapping[int, convert.Submitted]) -> int | None:
    named = (parent.item for parent in item.item_dependencies)
    return next((place for place in named if not _job_id(stored.get(place))), None)


def _reason(
    place: int, stored: Mapping[int, convert.Submitted], errors: Mapping[int, MeshError]
) -> str:
    """What was told of an item that has no id."""
    outcome = stored.get(place)
    if outcome is None or isinstance(outcome, str):
        return errors[place].reason
    return outcome.error.reason


def _tied(item: pb.EnqueueItem, stored: Mapping[int, convert.Submitted]) -> pb.EnqueueItem:
    """The item as if its parents had been stored by an earlier call."""
    if not item.item_dependencies:
        return item
    tied = pb.EnqueueItem(job=item.job, idempotency_key=item.idempotency_key)
    for parent in item.item_dependencies:
        job_id = _job_id(stored[parent.item])
        tied.job.dependencies.add(job_id=job_id, on_failure=parent.on_failure)
    return tied


def _job_id(outcome: convert.Submitted | None) -> str:
    if outcome is None or isinstance(outcome, str):
        return outcome or ""
    return outcome.job.id
