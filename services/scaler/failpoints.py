"""The instants at which a Scaler may be struck; see `services.mesh.failpoints`."""

from __future__ import annotations

from services.mesh.failpoints import Place, When, unforeseen
from services.mesh.lease.etcd import LeaseSession
from services.mesh.runtime import Process
from services.scaler.adapters.etcd import EtcdStatuses
from services.scaler.adapters.process.driver import ProcessDriver
from services.scaler.adapters.process.launcher import Launcher
from services.scaler.adapters.workers import GrpcWorkerCalls
from services.scaler.app.reconciler import Reconciler


def _no_process() -> Exception:
    return OSError("failpoint")


BEFORE, AFTER = When.BEFORE, When.AFTER

PLACES = (
    Place(
        "scaler.lease.renewed",
        "etcd renewed its lease, and it does not know yet",
        LeaseSession,
        "_renewed",
        BEFORE,
    ),
    Place(
        "scaler.leads",
        "has become the one that acts, and has not looked at what runs",
        Reconciler,
        "_step_up",
        BEFORE,
    ),
    Place(
        "scaler.grow.begins",
        "a pool needs workers, and none is started",
        ProcessDriver,
        "grow",
        BEFORE,
    ),
    Place(
        "scaler.start.begins",
        "a worker is about to be started",
        Launcher,
        "launch",
        BEFORE,
        _no_process,
    ),
    Place(
        "scaler.started",
        "a worker runs, and is not in the crew",
        Launcher,
        "launch",
        AFTER,
        _no_process,
    ),
    Place(
        "scaler.status.begins",
        "a decision is taken, and not written down",
        EtcdStatuses,
        "put",
        BEFORE,
    ),
    Place(
        "scaler.shrink.begins",
        "a pool has too many workers, and none was asked to go",
        ProcessDriver,
        "shrink",
        BEFORE,
    ),
    Place(
        "scaler.drain_asked",
        "a worker was asked to go, and that is not written down",
        GrpcWorkerCalls,
        "drain",
        AFTER,
    ),
    Place(
        "scaler.drain.begins",
        "told to end: not serving, still acting",
        Process,
        "_cease",
        BEFORE,
        unforeseen,
    ),
    Place(
        "scaler.drain.ceased",
        "told to end: takes nothing more, and has not finished",
        Process,
        "_cease",
        AFTER,
        unforeseen,
    ),
)
