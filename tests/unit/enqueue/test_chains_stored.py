"""What is told of an item that was not stored, for the sake of the one it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2

from services.enqueue.convert import Submitted
from services.enqueue.servicer.chains import store_chained
from services.mesh.errors import MeshError, NoHealthyShard, OutcomeUnknown, ParentNotStored
from services.mesh.rpc.items import to_item_error


class Desk:
    """Admits everything."""

    async def admit_all(self, namespace: str, items: Sequence[Any], numbers: Sequence[int]) -> Any:
        return SimpleNamespace(request=items, order=range(len(items)), errors={})


def chain(length: int) -> list[pb.EnqueueItem]:
    first = pb.EnqueueItem()
    return [first, *(pb.EnqueueItem(item_dependencies=[{"item": n}]) for n in range(length - 1))]


async def errors_of(put: Any) -> dict[int, MeshError]:
    return (await store_chained(Desk(), put, "n", chain(3))).errors  # type: ignore[arg-type]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("error", [OutcomeUnknown("s0"), NoHealthyShard()])
async def test_a_child_names_what_was_told_of_its_parent(whole: bool, error: MeshError) -> None:
    async def put(request: Sequence[Any]) -> Sequence[Submitted]:
        if whole:
            raise error
        return [orchestrator_service_pb2.PutJobResult(error=to_item_error(error))]

    errors = await errors_of(put)
    child, grandchild = errors[1], errors[2]
    assert isinstance(child, ParentNotStored)
    assert child.metadata == {"item": "0", "parent_reason": error.reason}
    assert ("may or may not be stored" in child.message) == isinstance(error, OutcomeUnknown)
    # The child itself was certainly not stored, and that is what the next one is told.
    assert grandchild.metadata == {"item": "1", "parent_reason": "PARENT_NOT_STORED"}
    assert "which was not stored" in grandchild.message
