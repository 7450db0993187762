"""Job locks: batches of keys under one lease, taken and given back in few transactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, compress, islice
from typing import Any, TypeVar
from uuid import UUID

from etcd import kv_pb2
from etcd import rpc_pb2 as pb

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.failure import Refused
from services.mesh.lease.etcd.leftovers import Leftovers
from services.mesh.lease.etcd.lock_requests import LockRequests
from services.mesh.lease.keys import Keys
from services.mesh.lease.port import (
    Lease,
    LeaseLost,
    LeaseState,
    LockOwner,
    LockResult,
    Locks,
    LockTable,
)
from services.mesh.runtime import Backoff, deadline

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A lock by its name in etcd, for the dispatch with this fence; and the same with its job.
NamedFence = tuple[bytes, int]
Named = tuple[bytes, NamedFence]

#: etcd's own default for --max-txn-ops.
MAX_TXN_OPS = 128
#: etcd takes the width of each level off the allowance of the next; ours go two levels deep.
NESTED_LEVELS = 2
#: So a transaction can have a few times as many locks as operations, in groups: a call, and a
#: record in etcd's log, cost as much as a few dozen locks.
MAX_GROUPS = 8
BACKOFF = Backoff(first=0.2, ceiling=2.0)


class EtcdLockTable(LockTable):
    """Everyone's locks, to look at."""

    def __init__(self, client: EtcdClient, keys: Keys, *, max_txn_ops: int = MAX_TXN_OPS) -> None:
        self._client = client
        self._keys = keys
        self._max_txn_ops = max_txn_ops

    async def held(self, jobs: Iterable[bytes]) -> dict[bytes, LockOwner]:
        found = await _all(self._read(chunk) for chunk in _chunks(jobs, self._max_txn_ops))
        return dict(chain.from_iterable(found))

    async def _read(self, jobs: Sequence[bytes]) -> list[tuple[bytes, LockOwner]]:
        request = pb.TxnRequest()
        for job in jobs:
            request.success.add().request_range.key = self._keys.lock(UUID(bytes=job)).encode()
        response = await self._client.txn(request, repeatable=True)
        return [
            (job, LockOwner.parse(read.response_range.kvs[0].value))
            for job, read in zip(jobs, response.responses, strict=True)
            if read.response_range.kvs
        ]


class JobLocks(Locks):
    """The locks of one worker, under its lease."""

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        lease: Lease,
        worker_id: str,
        *,
        max_txn_ops: int = MAX_TXN_OPS,
    ) -> None:
        self._client = client
        self._requests = LockRequests(keys.locks, worker_id, lease.lease_id)
        self._lease = lease
        self._max_txn_ops = max_txn_ops
        self._max_nested = max(1, max_txn_ops - NESTED_LEVELS)
        groups = max(1, min(MAX_GROUPS, max_txn_ops // 2))
        self._max_group = max_txn_ops - groups if groups > 1 else max_txn_ops
        self._max_at_once = groups * self._max_group
        #: Locks we know to be ours. Never more than the worker has jobs in hand.
        self._mine: dict[bytes, NamedFence] = {}
        #: Locks to be given back that etcd did not confirm. Kept here, or nobody else could run
        #: these jobs while we live.
        self._owed: dict[bytes, NamedFence] = {}
        self._repaying: asyncio.Task[None] | None = None
        #: Jobs whose locks are being given back: etcd may run that now, later or twice.
        self._dropping: dict[asyncio.Event, frozenset[bytes]] = {}
        #: Jobs whose locks are being taken, call by call.
        self._taking: dict[object, Collection[bytes]] = {}
        self._leftovers = Leftovers(client, lease, keys.locks, self._known)

    async def close(self) -> None:
        """Stop repeating unlocks; what is still owed ends with the lease."""
        await self._leftovers.close()
        if self._repaying is not None:
            self._repaying.cancel()
            with suppress(asyncio.CancelledError):
                await self._repaying

    # --- lock ---

    async def lock(self, fences: Mapping[bytes, int]) -> LockResult:
        await self._dropped(fences)
        # From now on we do not know which fence these locks have: an unlock of an older one that
        # begins before we are done must look.
        for job in self._mine.keys() & fences.keys():
            del self._mine[job]
        self._require_lease()
        self._leftovers.watch()
        name = self._requests.name
        wanted = {job: (name(job), fence) for job, fence in fences.items()}
        call = object()
        self._taking[call] = fences.keys()
        try:
            parts = await _all(
                self._lock_chunk(chunk) for chunk in _chunks(wanted.items(), self._max_at_once)
            )
        finally:
            del self._taking[call]
        held = dict(chain.from_iterable(part.items() for part in parts))
        for job in held:
            del wanted[job]
        self._mine.update(wanted)
        for job in self._owed.keys() & wanted.keys():
            del self._owed[job]
        # The lease may have ended while the answer travelled: then these locks are worth nothing.
        self._require_lease()
        return LockResult(list(wanted), held)

    async def _dropped(self, jobs: Collection[bytes]) -> None:
        """Return when none of these locks is being given back without a look at its fence."""
        while under_way := [o for o, some in self._dropping.items() if not some.isdisjoint(jobs)]:
            for over in under_way:
                await over.wait()

    def _require_lease(self) -> None:
        if not self._lease.alive:
            raise LeaseLost(self._lease.lease_id, self._lease.state.value)

    async def _lock_chunk(self, wanted: Sequence[Named]) -> dict[bytes, LockOwner]:
        """Lock these; those that others hold."""
        try:
            rest = await self._take_all(wanted)
            parts = [await self._take_each(part) for part in _chunks(rest, self._max_nested)]
        except Refused as refused:
            if refused.lease_not_found:
                raise LeaseLost(self._lease.lease_id, "etcd does not know it") from refused
            raise
        return dict(chain.from_iterable(part.items() for part in parts))

    async def _take_all(self, wanted: Sequence[Named]) -> list[Named]:
        """All of them, group by group, but no group of which one is held: those that are left."""
        groups = self._groups_of(wanted)
        requests = [self._requests.take_all(lock for _, lock in group) for group in groups]
        # Run twice, the second finds the keys of the first and fails; taking each then finds them
        # to be ours.
        return await self._run(requests, groups)

    async def _take_each(self, wanted: Sequence[Named]) -> dict[bytes, LockOwner]:
        """Each that is free or already ours; the others, with who holds them."""
        request = self._requests.take_each(lock for _, lock in wanted)
        response = await self._client.txn(request, repeatable=True)
        holders = (_holder(answer.response_txn) for answer in response.responses)
        return {
            job: LockOwner.parse(holder.value)
            for (job, _), holder in zip(wanted, holders, strict=True)
            if holder is not None
        }

    # --- unlock ---

    async def unlock(self, fences: Mapping[bytes, int]) -> None:
        """Give locks back. What etcd does not confirm now is repeated until it does."""
        known: list[Named] = []
        unsure: list[Named] = []
        for job, fence in fences.items():
            mine = self._mine.get(job)
            if mine is None:
                unsure.append((job, (self._requests.name(job), fence)))
            elif mine[1] == fence:
                del self._mine[job]
                known.append((job, mine))
        drop = [self._drop_all(chunk) for chunk in _chunks(known, self._max_at_once)]
        drop += [self._drop_each(chunk) for chunk in _chunks(unsure, self._max_nested)]
        with self._under_way(known):
            try:
                await _all(drop)
            except DependencyUnavailable as error:
                extra = {"action": "unlock_failed", "error": str(error)}
                log.warning("could not unlock", extra=extra)
                self._owe(chain(known, unsure))

    @contextmanager
    def _under_way(self, ours: Sequence[Named]) -> Iterator[None]:
        """Who wants one of these again waits until the block has ended."""
        over = asyncio.Event()
        self._dropping[over] = frozenset(job for job, _ in ours)
        try:
            yield
        finally:
            del self._dropping[over]
            over.set()

    async def _drop_all(self, ours: Sequence[Named]) -> None:
        groups = self._groups_of(ours)
        requests = [self._requests.drop_all([lock for _, lock in group]) for group in groups]
        # Run twice, the second finds nothing; dropping each then has nothing to do.
        for part in _chunks(await self._run(requests, groups), self._max_nested):
            await self._drop_each(part)

    async def _drop_each(self, maybe_ours: Sequence[Named]) -> None:
        request = self._requests.drop_each(lock for _, lock in maybe_ours)
        await self._client.txn(request, repeatable=True)

    # --- many in one transaction ---

    def _groups_of(self, locks: Sequence[Named]) -> list[Sequence[Named]]:
        """What one transaction can take: as it is, or within others."""
        if len(locks) <= self._max_txn_ops:
            return [locks]
        return [*_chunks(locks, self._max_group)]

    async def _run(
        self, requests: Sequence[pb.TxnRequest], groups: Sequence[Sequence[Named]]
    ) -> list[Named]:
        """Run a request for each of the groups; the locks of those that did not succeed."""
        if len(requests) == 1:
            answer = await self._client.txn(requests[0], repeatable=True)
            return [] if answer.succeeded else list(groups[0])
        together = pb.TxnRequest(success=[pb.RequestOp(request_txn=one) for one in requests])
        answers = (await self._client.txn(together, repeatable=True)).responses
        failed = [not answer.response_txn.succeeded for answer in answers]
        return list(chain.from_iterable(compress(groups, failed)))

    # --- unlocks that were not confirmed ---

    def _owe(self, items: Iterable[Named]) -> None:
        self._owed.update((job, lock) for job, lock in items if job not in self._mine)
        if self._repaying is None or self._repaying.done():
            self._repaying = asyncio.create_task(self._repay(), name="unlock-again")

    async def _repay(self) -> None:
        deadline.start(None)  # not that of the call which could not unlock
        failures = 1
        while self._owed and self._lease.state in (LeaseState.HELD, LeaseState.DOUBTFUL):
            await asyncio.sleep(BACKOFF.delay(failures))
            part = list(islice(self._owed.items(), self._max_nested))
            try:
                await self._drop_each(part)
            except DependencyUnavailable:
                failures += 1
            else:
                for job, lock in part:
                    # Meanwhile the job may have been locked again, and be owed for that lock now.
                    if self._owed.get(job) == lock:
                        del self._owed[job]

    # --- locks that came too late ---

    def _known(self) -> set[bytes]:
        held = chain(self._mine.values(), self._owed.values())
        moving = chain(self._taking.values(), self._dropping.values())
        names = map(self._requests.name, chain.from_iterable(moving))
        return {lock[0] for lock in held}.union(names)


def _holder(take: pb.TxnResponse) -> kv_pb2.KeyValue | None:
    """Who kept us from taking the key; None if we took it."""
    if take.succeeded:
        return None
    retake = take.responses[0].response_txn
    return None if retake.succeeded else retake.responses[0].response_range.kvs[0]


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls together and wait for every one of them, then raise the first failure."""
    calls = list(calls)
    if len(calls) == 1:
        return [await calls[0]]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
