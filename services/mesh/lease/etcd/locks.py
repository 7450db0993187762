"""Job locks: batches of keys under one lease, taken and given back in few transactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID

from etcd import kv_pb2
from etcd import rpc_pb2 as pb

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.failure import Refused
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

#: etcd's own default for --max-txn-ops.
MAX_TXN_OPS = 128
#: etcd takes the width of each level off the allowance of the next; ours go two levels deep.
NESTED_LEVELS = 2
BACKOFF = Backoff(first=0.2, ceiling=2.0)


class EtcdLockTable(LockTable):
    """Everyone's locks, to look at."""

    def __init__(self, client: EtcdClient, keys: Keys, *, max_txn_ops: int = MAX_TXN_OPS) -> None:
        self._client = client
        self._prefix = keys.locks.encode()
        self._max_txn_ops = max_txn_ops

    async def held(self, job_ids: Iterable[UUID]) -> dict[UUID, LockOwner]:
        found = await _all(self._read(chunk) for chunk in _chunks(job_ids, self._max_txn_ops))
        return dict(chain.from_iterable(found))

    async def _read(self, job_ids: Sequence[UUID]) -> list[tuple[UUID, LockOwner]]:
        request = pb.TxnRequest()
        for job_id in job_ids:
            request.success.add().request_range.key = self._prefix + str(job_id).encode()
        response = await self._client.txn(request, repeatable=True)
        return [
            (job_id, LockOwner.parse(read.response_range.kvs[0].value))
            for job_id, read in zip(job_ids, response.responses, strict=True)
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
        self._prefix = keys.locks.encode()
        self._lease = lease
        self._worker_id = worker_id.encode()
        self._max_txn_ops = max_txn_ops
        self._max_nested = max(1, max_txn_ops - NESTED_LEVELS)
        #: Locks we know to be ours, with their fences. Never more than the worker has jobs in hand.
        self._mine: dict[UUID, int] = {}
        #: Locks to be given back that etcd did not confirm. Kept here, or nobody else could run
        #: these jobs while we live.
        self._owed: dict[UUID, int] = {}
        self._repaying: asyncio.Task[None] | None = None
        #: Locks whose giving back is under way: etcd may run it now, later or twice.
        self._dropping: dict[UUID, asyncio.Event] = {}

    async def close(self) -> None:
        """Stop repeating unlocks; what is still owed ends with the lease."""
        if self._repaying is not None:
            self._repaying.cancel()
            with suppress(asyncio.CancelledError):
                await self._repaying

    # --- lock ---

    async def lock(self, fences: Mapping[UUID, int]) -> LockResult:
        for over in {self._dropping[job_id] for job_id in fences if job_id in self._dropping}:
            await over.wait()
        self._require_lease()
        parts = await _all(
            self._lock_chunk(chunk) for chunk in _chunks(fences.items(), self._max_txn_ops)
        )
        result = LockResult()
        for part in parts:
            result.acquired.extend(part.acquired)
            result.held.update(part.held)
        for job_id in result.acquired:
            self._mine[job_id] = fences[job_id]
            self._owed.pop(job_id, None)
        # The lease may have ended while the answer travelled: then these locks are worth nothing.
        self._require_lease()
        return result

    def _require_lease(self) -> None:
        if not self._lease.alive:
            raise LeaseLost(self._lease.lease_id, self._lease.state.value)

    async def _lock_chunk(self, wanted: Sequence[tuple[UUID, int]]) -> LockResult:
        try:
            if await self._take_all(wanted):
                return LockResult([job_id for job_id, _ in wanted])
            parts = [await self._take_each(part) for part in _chunks(wanted, self._max_nested)]
        except Refused as refused:
            if refused.lease_not_found:
                raise LeaseLost(self._lease.lease_id, "etcd does not know it") from refused
            raise
        acquired = list(chain.from_iterable(part.acquired for part in parts))
        return LockResult(acquired, dict(chain.from_iterable(p.held.items() for p in parts)))

    async def _take_all(self, wanted: Sequence[tuple[UUID, int]]) -> bool:
        """All of them, or none if one is held."""
        request = pb.TxnRequest()
        compare, success, lease_id = request.compare, request.success, self._lease.lease_id
        for job_id, fence in wanted:
            key = self._prefix + str(job_id).encode()
            compare.add(key=key, target=pb.Compare.CREATE, create_revision=0)
            put = success.add().request_put
            put.key, put.value, put.lease = key, self._value(fence), lease_id
        # Run twice, the second finds the keys of the first and fails; taking each then finds them
        # to be ours.
        return (await self._client.txn(request, repeatable=True)).succeeded

    async def _take_each(self, wanted: Sequence[tuple[UUID, int]]) -> LockResult:
        """Each that is free or already ours; for the others, who holds them."""
        request = pb.TxnRequest(success=[self._take_one(job_id, fence) for job_id, fence in wanted])
        response = await self._client.txn(request, repeatable=True)
        result = LockResult()
        for (job_id, _), answer in zip(wanted, response.responses, strict=True):
            holder = _holder(answer.response_txn)
            if holder is None:
                result.acquired.append(job_id)
            else:
                result.held[job_id] = LockOwner.parse(holder.value)
        return result

    def _take_one(self, job_id: UUID, fence: int) -> pb.RequestOp:
        key, lease_id = self._prefix + str(job_id).encode(), self._lease.lease_id
        put = pb.RequestOp(
            request_put=pb.PutRequest(key=key, value=self._value(fence), lease=lease_id)
        )
        read = pb.RequestOp(request_range=pb.RangeRequest(key=key))
        free = pb.Compare(key=key, target=pb.Compare.CREATE, create_revision=0)
        ours = pb.Compare(key=key, target=pb.Compare.LEASE, lease=lease_id)
        retake = pb.TxnRequest(compare=[ours], success=[put], failure=[read])
        take = pb.TxnRequest(
            compare=[free], success=[put], failure=[pb.RequestOp(request_txn=retake)]
        )
        return pb.RequestOp(request_txn=take)

    def _value(self, fence: int) -> bytes:
        return b"%b/%d" % (self._worker_id, fence)

    # --- unlock ---

    async def unlock(self, fences: Mapping[UUID, int]) -> None:
        """Give locks back. What etcd does not confirm now is repeated until it does."""
        known: list[tuple[UUID, int]] = []
        unsure: list[tuple[UUID, int]] = []
        for job_id, fence in fences.items():
            mine = self._mine.get(job_id)
            if mine is None:
                unsure.append((job_id, fence))
            elif mine == fence:
                del self._mine[job_id]
                known.append((job_id, fence))
        drop = [self._drop_all(chunk) for chunk in _chunks(known, self._max_txn_ops)]
        drop += [self._drop_each(chunk) for chunk in _chunks(unsure, self._max_nested)]
        with self._under_way(known):
            try:
                await _all(drop)
            except DependencyUnavailable as error:
                extra = {"action": "unlock_failed", "error": str(error)}
                log.warning("could not unlock", extra=extra)
                self._owe(chain(known, unsure))

    @contextmanager
    def _under_way(self, ours: Sequence[tuple[UUID, int]]) -> Iterator[None]:
        """Who wants one of these again waits until the block has ended."""
        over = asyncio.Event()
        self._dropping.update((job_id, over) for job_id, _ in ours)
        try:
            yield
        finally:
            for job_id, _ in ours:
                del self._dropping[job_id]
            over.set()

    async def _drop_all(self, ours: Sequence[tuple[UUID, int]]) -> None:
        request = pb.TxnRequest()
        for job_id, _ in ours:
            key = self._prefix + str(job_id).encode()
            request.success.add().request_delete_range.key = key
        first = request.success[0].request_delete_range.key
        # All keys of a lease die in one revision: if the first still has ours, so have the rest.
        # To compare every value would cost etcd a fifth more of all that it does for a job.
        request.compare.add(key=first, target=pb.Compare.LEASE, lease=self._lease.lease_id)
        # Run twice, the second finds nothing; dropping each then has nothing to do.
        if not (await self._client.txn(request, repeatable=True)).succeeded:
            for part in _chunks(ours, self._max_nested):
                await self._drop_each(part)

    async def _drop_each(self, maybe_ours: Sequence[tuple[UUID, int]]) -> None:
        request = pb.TxnRequest(success=[self._drop_one(*item) for item in maybe_ours])
        await self._client.txn(request, repeatable=True)

    def _drop_one(self, job_id: UUID, fence: int) -> pb.RequestOp:
        key = self._prefix + str(job_id).encode()
        # By value: the job may have come back to us meanwhile, and that lock must stay.
        ours = pb.Compare(key=key, target=pb.Compare.VALUE, value=self._value(fence))
        delete = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
        return pb.RequestOp(request_txn=pb.TxnRequest(compare=[ours], success=[delete]))

    # --- unlocks that were not confirmed ---

    def _owe(self, items: Iterable[tuple[UUID, int]]) -> None:
        self._owed.update((job_id, fence) for job_id, fence in items if job_id not in self._mine)
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
                for job_id, fence in part:
                    # Meanwhile the job may have been locked again, and be owed for that lock now.
                    if self._owed.get(job_id, fence) == fence:
                        self._owed.pop(job_id, None)


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
