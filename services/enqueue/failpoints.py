"""The instants at which Enqueue may be struck; see `services.mesh.failpoints`."""

from __future__ import annotations

from services.enqueue.adapters.jobs import OrchestratorSource
from services.enqueue.adapters.order import OrchestratorOrder
from services.enqueue.adapters.submitting import Submitter
from services.enqueue.app.filter_hub import FilterHub
from services.enqueue.app.inputs import Inputs
from services.enqueue.app.watches import WatchHub
from services.enqueue.servicer.jobs import JobCalls
from services.mesh.errors import OutcomeUnknown
from services.mesh.failpoints import Place, When, unforeseen
from services.mesh.runtime import Process


def _unknown() -> Exception:
    return OutcomeUnknown("failpoint")


BEFORE, AFTER = When.BEFORE, When.AFTER

PLACES = (
    Place(
        "enqueue.input.stored",
        "a large input was put away into the object store, and its job is nowhere",
        Inputs,
        "offload",
        AFTER,
    ),
    Place(
        "enqueue.upload.stored",
        "a client's upload is in the object store, and its job is nowhere",
        Inputs,
        "upload",
        AFTER,
    ),
    Place(
        "enqueue.put.begins",
        "jobs are checked, and not handed on",
        Submitter,
        "put",
        BEFORE,
    ),
    Place(
        "enqueue.put.stored",
        "jobs are stored, and the answer is not packed",
        Submitter,
        "put",
        AFTER,
        _unknown,
        lossy=True,
    ),
    Place(
        "enqueue.answered",
        "jobs are stored, and the client's answer is not sent",
        JobCalls,
        "EnqueueBatch",
        AFTER,
        _unknown,
        lossy=True,
    ),
    Place(
        "enqueue.cancel.answered",
        "a job is cancelled, and the client's answer is not sent",
        JobCalls,
        "CancelJob",
        AFTER,
        _unknown,
        lossy=True,
    ),
    Place(
        "enqueue.watch.begins",
        "a watch was opened or resumed, and nothing read for it",
        WatchHub,
        "_begin",
        BEFORE,
    ),
    Place(
        "enqueue.watch.hinted",
        "hints have come, and are not delivered",
        WatchHub,
        "hinted",
        BEFORE,
        lossy=True,
    ),
    Place(
        "enqueue.watch.read",
        "events were read again for a watch, and are not delivered",
        OrchestratorSource,
        "changes_after",
        AFTER,
    ),
    Place(
        "enqueue.filter.begins",
        "a watch by filter was opened or resumed, and nothing read for it",
        FilterHub,
        "_join",
        BEFORE,
    ),
    Place(
        "enqueue.filter.read",
        "a page of a shard's order was read, and is not delivered",
        OrchestratorOrder,
        "page",
        AFTER,
    ),
    Place(
        "enqueue.drain.begins",
        "told to end: not serving, still taking",
        Process,
        "_cease",
        BEFORE,
        unforeseen,
    ),
    Place(
        "enqueue.drain.ceased",
        "told to end: takes nothing more, and has not finished",
        Process,
        "_cease",
        AFTER,
        unforeseen,
    ),
)
