"""Leases, locks, membership and leadership: what the mesh keeps in etcd.

The row in Postgres decides; etcd only makes double runs rare and death visible. Nothing here is
needed for safety: a worker that lost its lease and does not know it yet is stopped by the fence in
the row, not by its lock.

One lease per process
    A worker (scheduler, scaler) is granted one lease per boot, and everything it says in etcd hangs
    on it: its registration, its locks, its leadership. When the process dies the lease expires, all
    its keys vanish in one revision, and whoever watches them knows. A new lease is a new identity:
    keys of the old one are never taken over.

States of a lease, as its holder sees it

        grant                 window passed
    ──────────▶  HELD  ───────────────────────▶  DOUBTFUL
                  │  ◀───────────────────────       │
                  │        renewed after all        │
                  │ server: no such lease           │ server: no such lease
                  └──────────────▶  LOST  ◀─────────┘            close() from anywhere: CLOSED

    HELD means: inside the trust window, which ends at (time the last successful renewal was *sent*)
    + TTL - margin, on the monotonic clock. The server counts from when it *received* the renewal,
    so the holder always stops believing first. `alive` is computed from the clock on each look,
    never from a timer: a process that was frozen for a minute and thaws sees `alive == False` in
    its first instruction.

    DOUBTFUL means: nobody answered in time. etcd may be away (then nobody can see the lease expire
    either, and etcd gives every lease its full TTL again when it comes back), or only we are cut
    off (then others see us die). Take no new work; renewal goes on, and may bring the lease back.

    LOST is the server's word, and final. What follows is the owner's decision.

Locks
    A lock is the key of one job under the worker's lease, value "<worker_id>/<fence>". A batch is
    locked in one transaction: all keys absent, then all written. etcd bounds the operations of a
    transaction, so a larger batch is several of these, each for itself, within one. Only when one
    fails does a second, nested per key, tell which were held. A key under our own lease counts as
    ours: the first call may have been applied although its answer was lost. Unlocking proves with
    the first key that the lease still lives (all keys of a lease die together), then deletes the
    batch; keys we do not remember taking are deleted one by one, each only if it is ours.

Places of limits
    A limit of N attempts at once has N numbered keys; whoever runs one holds a key of each of its
    limits under its lease. A place is taken by creating its key, so there are never more holders
    than places, and those of a dead worker vanish with its lease. While a lowered limit still has
    holders above its new bound, a place is taken only if nobody took one since the look.

Watches
    A watch lists first and then follows. After any break (connection, compaction, a rebuilt etcd)
    it lists again and reports the difference, so no deletion is missed, whatever happened to the
    history in between.

`port` has the types and protocols (no driver), `election` what can be built on them alone, `etcd`
the adapter, `memory` the same for tests within one process.
"""

from services.mesh.jobs.limits import Limit, Place
from services.mesh.lease.election import Election
from services.mesh.lease.keys import Keys
from services.mesh.lease.port import (
    Deleted,
    Entry,
    Leadership,
    Lease,
    LeaseLost,
    LeaseState,
    LockOwner,
    LockResult,
    Locks,
    LockTable,
    PlaceResult,
    Places,
    PlaceWish,
    Put,
    Registry,
    Snapshot,
    WatchEvent,
)

__all__ = [
    "Deleted",
    "Election",
    "Entry",
    "Keys",
    "Leadership",
    "Lease",
    "LeaseLost",
    "LeaseState",
    "Limit",
    "LockOwner",
    "LockResult",
    "LockTable",
    "Locks",
    "Place",
    "PlaceResult",
    "PlaceWish",
    "Places",
    "Put",
    "Registry",
    "Snapshot",
    "WatchEvent",
]
