"""Places of limits: numbered keys under the lease of the worker whose attempts run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from random import Random, SystemRandom
from typing import TypeVar

from etcd import rpc_pb2 as pb

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.limits import Place
from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.failure import Refused
from services.mesh.lease.etcd.leftovers import Leftovers
from services.mesh.lease.etcd.locks import BACKOFF, MAX_TXN_OPS
from services.mesh.lease.keys import Keys
from services.mesh.lease.places import Choice, Full, choose
from services.mesh.lease.port import (
    Lease,
    LeaseLost,
    LeaseState,
    PlaceResult,
    Places,
    PlaceWish,
)
from services.mesh.runtime import deadline

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Looks at what is held before an owner that was always forestalled is told that it is full.
ROUNDS = 4
#: Widest transaction within one: an attempt has two limits at most, with two conditions each.
NESTED_OPS = 4


class EtcdPlaces(Places):
    """The places of one worker, under its lease."""

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        lease: Lease,
        *,
        max_txn_ops: int = MAX_TXN_OPS,
        random: Random | None = None,
    ) -> None:
        self._client, self._keys, self._lease = client, keys, lease
        self._max_ops = max(1, max_txn_ops - NESTED_OPS - 1)
        self._random = random or SystemRandom()
        #: Places to be given back that etcd did not confirm.
        self._owed: set[Place] = set()
        #: The keys of those that were taken and not given back.
        self._held: set[str] = set()
        self._leftovers = Leftovers(client, lease, keys.limits, self._known)
        self._repaying: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop repeating; what is still owed ends with the lease."""
        await self._leftovers.close()
        if self._repaying is not None:
            self._repaying.cancel()
            with suppress(asyncio.CancelledError):
                await self._repaying

    # --- take ---

    async def take(self, wishes: Sequence[PlaceWish]) -> PlaceResult:
        self._require_lease()
        result = PlaceResult()
        try:
            await self._take_rounds(wishes, result)
            # The lease may have ended while the answer travelled.
            self._require_lease()
        except DependencyUnavailable as error:
            # Nobody is going to use what was taken before, and the lease may live on.
            self._owe(place for places in result.taken.values() for place in places)
            if isinstance(error, Refused) and error.lease_not_found:
                raise LeaseLost(self._lease.lease_id, "etcd does not know it") from error
            raise
        self._held.update(place.key for places in result.taken.values() for place in places)
        self._leftovers.watch()
        return result

    def _known(self) -> set[bytes]:
        return {key.encode() for key in chain(self._held, (place.key for place in self._owed))}

    async def _take_rounds(self, wishes: Sequence[PlaceWish], result: PlaceResult) -> None:
        waiting = list(wishes)
        for _ in range(ROUNDS):
            if not waiting:
                break
            waiting = await self._take_round(waiting, result)
        result.full.update((wish.owner, wish.limits[0].name) for wish in waiting)

    async def _take_round(self, wishes: list[PlaceWish], result: PlaceResult) -> list[PlaceWish]:
        """Look, choose, take; those that were forestalled."""
        names = sorted({limit.name for wish in wishes for limit in wish.limits})
        held, revision = await self._look(names)
        choices = choose(wishes, held, self._random)
        result.full.update((c.owner, c.limit) for c in choices if isinstance(c, Full))
        chosen = [choice for choice in choices if isinstance(choice, Choice)]
        self._note(result, (choice for choice in chosen if choice.owned))
        for chunk in _chunks((c for c in chosen if not c.owned), self._max_ops):
            # Chunk by chunk: should the next one fail, these are owed.
            self._note(result, await self._take(chunk, revision))
        return [w for w in wishes if w.owner not in result.taken and w.owner not in result.full]

    def _note(self, result: PlaceResult, done: Iterable[Choice]) -> None:
        result.taken.update((choice.owner, self._places(choice)) for choice in done)

    async def _look(self, names: Sequence[str]) -> tuple[dict[str, dict[int, str]], int]:
        """What is held of each limit, as of one revision."""
        held: dict[str, dict[int, str]] = {}
        revision = 0
        for chunk in _chunks(names, self._max_ops):
            request = pb.TxnRequest()
            for name in chunk:
                first, end = self._span(name)
                request.success.add().request_range.CopyFrom(
                    pb.RangeRequest(key=first, range_end=end)
                )
            answer = await self._client.txn(request, repeatable=True)
            # The oldest of the looks: what came after any of them must not pass as seen.
            revision = min(revision or answer.header.revision, answer.header.revision)
            for name, part in zip(chunk, answer.responses, strict=True):
                held[name] = {
                    int(kv.key.rpartition(b"/")[2]): kv.value.decode()
                    for kv in part.response_range.kvs
                }
        return held, revision

    async def _take(self, choices: Sequence[Choice], revision: int) -> list[Choice]:
        request = pb.TxnRequest()
        for choice in choices:
            request.success.add().request_txn.CopyFrom(self._taking(choice, revision))
        try:
            answer = await self._client.txn(request, repeatable=True)
        except DependencyUnavailable:
            # They may be ours all the same, and would be for as long as the lease lives.
            self._owe(place for choice in choices for place in self._places(choice))
            raise
        parts = zip(choices, answer.responses, strict=True)
        return [choice for choice, part in parts if part.response_txn.succeeded]

    def _taking(self, choice: Choice, revision: int) -> pb.TxnRequest:
        request = pb.TxnRequest()
        for name, number in choice.places:
            key = self._keys.place(name, number).encode()
            request.compare.add(key=key, target=pb.Compare.CREATE, create_revision=0)
            put = request.success.add().request_put
            put.key, put.value, put.lease = key, choice.owner.encode(), self._lease.lease_id
        for name in choice.alone:
            first, end = self._span(name)
            request.compare.add(
                key=first,
                range_end=end,
                target=pb.Compare.MOD,
                result=pb.Compare.LESS,
                mod_revision=revision + 1,
            )
        return request

    def _places(self, choice: Choice) -> tuple[Place, ...]:
        return tuple(Place(self._keys.place(*place), choice.owner) for place in choice.places)

    def _span(self, name: str) -> tuple[bytes, bytes]:
        prefix = f"{self._keys.limits}{name}".encode()
        return prefix + b"/", prefix + b"0"  # "0" follows "/"

    def _require_lease(self) -> None:
        if not self._lease.alive:
            raise LeaseLost(self._lease.lease_id, self._lease.state.value)

    # --- give back ---

    async def give_back(self, places: Iterable[Place]) -> None:
        """Give places back. What etcd does not confirm now is repeated until it does."""
        every = list(places)
        self._held.difference_update(place.key for place in every)
        try:
            await self._drop(every)
        except DependencyUnavailable as error:
            extra = {"action": "give_back_failed", "error": str(error)}
            log.warning("could not give places back", extra=extra)
            self._owe(every)

    async def _drop(self, places: Sequence[Place]) -> None:
        for chunk in _chunks(places, self._max_ops):
            request = pb.TxnRequest()
            for place in chunk:
                key, owner = place.key.encode(), place.owner.encode()
                nested = request.success.add().request_txn
                # By its owner: another attempt may have it by now, here or elsewhere.
                nested.compare.add(key=key, target=pb.Compare.VALUE, value=owner)
                nested.success.add().request_delete_range.key = key
            await self._client.txn(request, repeatable=True)

    def _owe(self, places: Iterable[Place]) -> None:
        self._owed.update(places)
        if self._repaying is None or self._repaying.done():
            self._repaying = asyncio.create_task(self._repay(), name="give-places-back-again")

    async def _repay(self) -> None:
        deadline.start(None)  # not that of the call which could not give back
        failures = 1
        while self._owed and self._lease.state in (LeaseState.HELD, LeaseState.DOUBTFUL):
            await asyncio.sleep(BACKOFF.delay(failures))
            part = list(islice(self._owed, self._max_ops))
            try:
                await self._drop(part)
            except DependencyUnavailable:
                failures += 1
            else:
                self._owed.difference_update(part)


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
