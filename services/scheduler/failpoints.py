"""The instants at which a scheduler may be struck; see `services.mesh.failpoints`."""

from __future__ import annotations

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.failpoints import Place, When, unforeseen
from services.mesh.lease.etcd import LeaseSession
from services.mesh.runtime import Process
from services.mesh.store.postgres import PostgresShard
from services.scheduler.adapters.broker import BusBroker
from services.scheduler.app.members import Membership
from services.scheduler.app.parking import Parking
from services.scheduler.app.sweeping import Sweeper


def _away() -> Exception:
    return ShardUnavailable("failpoint")


def _unknown() -> Exception:
    return OutcomeUnknown("failpoint")


def _on_shard(name: str, about: str, method: str, when: When) -> Place:
    """Before a statement the shard may be away; after it, its answer may be lost."""
    error = _away if when is When.BEFORE else _unknown
    return Place(f"scheduler.{name}", about, PostgresShard, method, when, error)


BEFORE, AFTER = When.BEFORE, When.AFTER

PLACES = (
    Place(
        "scheduler.registered",
        "a member by its key in etcd, and no duty done yet",
        Membership,
        "_register",
        AFTER,
    ),
    Place(
        "scheduler.lease.renewed",
        "etcd renewed its lease, and it does not know yet",
        LeaseSession,
        "_renewed",
        BEFORE,
    ),
    Place(
        "scheduler.grab.taken",
        "a worker's credit has come, and is not written down",
        Parking,
        "grabbed",
        BEFORE,
        lossy=True,
    ),
    _on_shard("claim.begins", "credit is set aside, and nothing claimed", "claim", BEFORE),
    _on_shard("claim.committed", "jobs are claimed, and not sent", "claim", AFTER),
    Place(
        "scheduler.dispatch.begins",
        "jobs are claimed, and about to be sent",
        BusBroker,
        "dispatch",
        BEFORE,
    ),
    Place(
        "scheduler.dispatch.sent",
        "jobs are sent, and the grab is not settled",
        BusBroker,
        "dispatch",
        AFTER,
    ),
    Place(
        "scheduler.hint.begins",
        "something is committed, and watchers do not know",
        BusBroker,
        "hint",
        BEFORE,
        lossy=True,
    ),
    Place(
        "scheduler.nudge.begins",
        "due work was found here, and other schedulers do not know",
        BusBroker,
        "nudge",
        BEFORE,
        lossy=True,
    ),
    Place(
        "scheduler.answer.begins",
        "a grab waited in vain, and its worker does not know",
        BusBroker,
        "answer_empty",
        BEFORE,
        lossy=True,
    ),
    _on_shard("look.begins", "the shard is about to be looked at", "pulse", BEFORE),
    _on_shard(
        "look.read", "what is due, overdue or soon is known, and no timer set", "pulse", AFTER
    ),
    _on_shard(
        "fire.begins", "schedules may be due, and are not locked", "fire_due_schedules", BEFORE
    ),
    Place(
        "scheduler.fire.uncommitted",
        "a schedule's jobs are written and it has moved on, all in an open transaction",
        PostgresShard,
        "_take",
        AFTER,
        _away,
    ),
    _on_shard(
        "fire.committed", "a schedule's jobs are stored, and not told", "fire_due_schedules", AFTER
    ),
    Place(
        "scheduler.sweep.found",
        "lost dispatches are known, and not taken back",
        Sweeper,
        "_unlocked",
        AFTER,
    ),
    _on_shard("sweep.committed", "lost dispatches are taken back, and not told", "sweep", AFTER),
    _on_shard("rescue.begins", "a worker is gone, and its jobs not taken back", "rescue", BEFORE),
    _on_shard(
        "rescue.committed", "a lost worker's jobs are taken back, and not told", "rescue", AFTER
    ),
    _on_shard(
        "expire.begins", "jobs may have expired, and are not ended", "expire_overdue", BEFORE
    ),
    _on_shard("expire.committed", "jobs are expired, and not told", "expire_overdue", AFTER),
    Place(
        "scheduler.drain.begins",
        "told to end: not serving, still taking",
        Process,
        "_cease",
        BEFORE,
        unforeseen,
    ),
    Place(
        "scheduler.drain.ceased",
        "told to end: takes nothing more, and has not finished",
        Process,
        "_cease",
        AFTER,
        unforeseen,
    ),
)
