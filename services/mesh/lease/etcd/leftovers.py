"""Locks and places of limits that came after they were given back.

A transaction that was not answered in time is sent again, to another member. The first may be run
all the same, whenever the member that has it wakes up: by then its keys may be taken, used and
given back, and it takes them once more. Nobody knows of those, and nobody else could run their jobs
for as long as our lease lives. So from time to time what etcd has under our lease is held against
what we know of: what is unknown in two looks, and unchanged between them, is removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from etcd import rpc_pb2 as pb

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.port import Lease, LeaseState
from services.mesh.runtime import deadline

log = logging.getLogger(__name__)

#: Between two looks, in seconds; longer than it takes to take or to give back a key.
LOOK_SECONDS = 20.0
#: Keys that one look asks about; there are hardly ever any.
MOST = 100


class Leftovers:
    """The keys under one lease, with one prefix, that their owner does not know of."""

    def __init__(
        self, client: EtcdClient, lease: Lease, prefix: str, known: Callable[[], Collection[bytes]]
    ) -> None:
        self._client, self._lease, self._prefix = client, lease, prefix.encode()
        self._known = known
        #: Those of the last look, and the revision of each.
        self._suspects: dict[bytes, int] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Look from time to time from now on, for as long as the lease lives."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="leftovers")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        deadline.start(None)  # not that of the call which began it
        while self._lease.state in (LeaseState.HELD, LeaseState.DOUBTFUL):
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(DependencyUnavailable):
                await self.look()

    async def look(self) -> int:
        """Look once; how many were removed. Raises DependencyUnavailable."""
        names = await self._client.keys_of(self._lease.lease_id)
        known = self._known()
        unknown = [name for name in names if name.startswith(self._prefix) and name not in known]
        before, self._suspects = self._suspects, {}
        removed = 0
        for name in unknown[:MOST]:
            found = (await self._client.range(name)).kvs
            if found and found[0].mod_revision == before.get(name):
                removed += await self._remove(name, before[name])
            elif found:
                self._suspects[name] = found[0].mod_revision
        return removed

    async def _remove(self, name: bytes, revision: int) -> bool:
        unchanged = pb.Compare(
            key=name, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=revision
        )
        drop = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))
        answer = await self._client.txn(pb.TxnRequest(compare=[unchanged], success=[drop]))
        if answer.succeeded:
            extra = {"action": "left_over", "key": name.decode()}
            log.warning("removed a key that came after it was given back", extra=extra)
        return answer.succeeded
