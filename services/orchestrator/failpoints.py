"""The instants at which an Orchestrator may be struck; see `services.mesh.failpoints`."""

from __future__ import annotations

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.failpoints import Place, When, unforeseen
from services.mesh.runtime import Process
from services.mesh.store.postgres import PostgresShard
from services.orchestrator.adapters.announcer import BusAnnouncer
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.reports import Committer
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.servicer import OrchestratorServicer


def _away() -> Exception:
    return ShardUnavailable("failpoint")


def _unknown() -> Exception:
    return OutcomeUnknown("failpoint")


def _on_shard(name: str, about: str, method: str, when: When) -> Place:
    """Before a statement the shard may be away; after it, its answer may be lost."""
    error = _away if when is When.BEFORE else _unknown
    return Place(f"orchestrator.{name}", about, PostgresShard, method, when, error)


BEFORE, AFTER = When.BEFORE, When.AFTER

PLACES = (
    Place(
        "orchestrator.topology.met",
        "the bucket map was seen in etcd, and is not in use yet",
        TopologyKeeper,
        "_meet",
        BEFORE,
    ),
    _on_shard("probe.begins", "a shard is about to be asked for a sign of life", "probe", BEFORE),
    _on_shard(
        "put.begins", "new jobs have their shard and ids, and are not stored", "put_jobs", BEFORE
    ),
    _on_shard("put.committed", "new jobs are stored, and nobody knows", "put_jobs", AFTER),
    _on_shard(
        "tie.begins", "new jobs with ties have their ids, and are not stored", "_put_tied", BEFORE
    ),
    _on_shard(
        "tie.committed", "new jobs with ties are stored, and nobody knows", "_put_tied", AFTER
    ),
    _on_shard(
        "replace.committed",
        "the holder of a unique key has the content of a new job, and nobody knows",
        "_replace",
        AFTER,
    ),
    Place(
        "orchestrator.put.nudged",
        "new jobs are stored, and the schedulers know",
        BusAnnouncer,
        "due",
        AFTER,
        unforeseen,
    ),
    Place(
        "orchestrator.put.handed",
        "new jobs are stored into a worker's hands, and it does not know",
        Loans,
        "_dispatch",
        BEFORE,
        unforeseen,
        lossy=True,
    ),
    Place(
        "orchestrator.put.sent",
        "new jobs were sent to their worker, and the answer is not made",
        Loans,
        "_dispatch",
        AFTER,
        unforeseen,
    ),
    Place(
        "orchestrator.put.answered",
        "new jobs are stored and told, and the answer is not sent",
        OrchestratorServicer,
        "PutJobs",
        AFTER,
        _unknown,
        lossy=True,
    ),
    _on_shard("report.begins", "reports have come, and are not committed", "report", BEFORE),
    Place(
        "orchestrator.report.started",
        "of a batch the starts are committed, and the endings are not",
        PostgresShard,
        "_start",
        AFTER,
        _unknown,
    ),
    _on_shard("report.committed", "reports are committed, and nobody knows", "report", AFTER),
    Place(
        "orchestrator.hint.begins",
        "something is committed, and watchers do not know",
        BusAnnouncer,
        "committed",
        BEFORE,
        unforeseen,
        lossy=True,
    ),
    Place(
        "orchestrator.report.told",
        "reports are committed and told, and the worker has no verdict",
        Committer,
        "_write",
        AFTER,
        unforeseen,
    ),
    _on_shard("cancel.begins", "a cancellation has come, and is not committed", "cancel", BEFORE),
    _on_shard(
        "cancel.committed", "jobs are cancelled, and their workers do not know", "cancel", AFTER
    ),
    Place(
        "orchestrator.cancel.told",
        "jobs are cancelled and told, and the answer is not sent",
        OrchestratorServicer,
        "CancelJobs",
        AFTER,
        _unknown,
        lossy=True,
    ),
    _on_shard("redrive.begins", "jobs are to be started over, and are not", "redrive", BEFORE),
    _on_shard("redrive.committed", "jobs are started over, and nobody knows", "redrive", AFTER),
    _on_shard(
        "events.read", "events were read for a watch, and are not sent", "events_after", AFTER
    ),
    _on_shard("order.read", "the shard's order was read, and is not sent", "events_since", AFTER),
    Place(
        "orchestrator.drain.begins",
        "told to end: not serving, still taking",
        Process,
        "_cease",
        BEFORE,
        unforeseen,
    ),
    Place(
        "orchestrator.drain.ceased",
        "told to end: takes nothing more, and has not finished",
        Process,
        "_cease",
        AFTER,
        unforeseen,
    ),
)
