"""The instants at which a worker may be struck; see `services.mesh.failpoints`."""

from __future__ import annotations

from services.mesh.failpoints import Place, When, unforeseen
from services.mesh.lease.etcd import JobLocks, LeaseSession
from services.mesh.runtime import Process
from services.worker.adapters.broker import BusBroker
from services.worker.adapters.membership import EtcdStanding
from services.worker.adapters.objects import BlobObjects
from services.worker.adapters.reports import GrpcReportStream
from services.worker.app.courier import Courier
from services.worker.app.grabber import Grabber
from services.worker.app.reporter import Reporter
from services.worker.app.runner import Runner
from services.worker.app.tenure import Tenure

BEFORE, AFTER = When.BEFORE, When.AFTER

PLACES = (
    Place(
        "worker.joined",
        "hears dispatches, and is not registered",
        BusBroker,
        "join",
        AFTER,
    ),
    Place(
        "worker.registered",
        "registered under its lease, and has not asked for work",
        EtcdStanding,
        "announce",
        AFTER,
    ),
    Place(
        "worker.lease.renewed",
        "etcd renewed its lease, and it does not know yet",
        LeaseSession,
        "_renewed",
        BEFORE,
    ),
    Place(
        "worker.grab.begins",
        "has room, and is about to ask for work",
        Grabber,
        "_ask",
        BEFORE,
        lossy=True,
    ),
    Place(
        "worker.received",
        "a dispatch has come, and is not in its book",
        Tenure,
        "received",
        BEFORE,
        lossy=True,
    ),
    Place(
        "worker.lock.begins",
        "a dispatch is in its book, and not locked",
        JobLocks,
        "lock",
        BEFORE,
    ),
    Place(
        "worker.locked",
        "locked, and not started",
        JobLocks,
        "lock",
        AFTER,
    ),
    Place(
        "worker.input.read",
        "the input object is here, and the handler has not begun",
        BlobObjects,
        "read",
        AFTER,
    ),
    Place(
        "worker.run.begins",
        "the handler is about to begin",
        Runner,
        "_execute",
        BEFORE,
    ),
    Place(
        "worker.run.ended",
        "the handler has returned, and its output is not stored",
        Courier,
        "deliver",
        BEFORE,
    ),
    Place(
        "worker.output.stored",
        "the output object is stored, and nothing reported",
        BlobObjects,
        "store",
        AFTER,
    ),
    Place(
        "worker.report.begins",
        "an ending is to be told, and is not sent",
        GrpcReportStream,
        "send",
        BEFORE,
        lossy=True,
    ),
    Place(
        "worker.report.sent",
        "an ending is sent, and its verdict not heard",
        GrpcReportStream,
        "send",
        AFTER,
    ),
    Place(
        "worker.verdict.heard",
        "the verdict has come, and nothing is unlocked",
        Reporter,
        "_judge",
        BEFORE,
        lossy=True,
    ),
    Place(
        "worker.unlock.begins",
        "jobs are over, and still locked",
        JobLocks,
        "unlock",
        BEFORE,
        lossy=True,
    ),
    Place(
        "worker.drain.begins",
        "told to end: not serving, still taking",
        Process,
        "_cease",
        BEFORE,
        unforeseen,
    ),
    Place(
        "worker.drain.ceased",
        "told to end: takes nothing more, and has not finished",
        Process,
        "_cease",
        AFTER,
        unforeseen,
    ),
    Place(
        "worker.leaving",
        "all is handed back, and the lease still held",
        EtcdStanding,
        "leave",
        BEFORE,
    ),
)
