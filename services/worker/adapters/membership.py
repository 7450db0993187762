"""The worker's place in etcd: lease, registration, locks; and the schedulers it can see there."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from services.mesh.lease import Deleted, Keys, Registry
from services.mesh.lease.etcd import EtcdClient, EtcdPlaces, JobLocks, LeaseSession
from services.worker.adapters.declarations import Declarations
from services.worker.adapters.presence import Presence
from services.worker.convert import info_to_proto
from services.worker.domain.info import WorkerInfo
from services.worker.ports import Membership, Schedulers

HOST_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    ttl_seconds: int = 5
    margin_seconds: float = 1.0
    max_txn_ops: int = 128


class EtcdStanding:
    """The port `Standing`: one identity, under one lease."""

    def __init__(
        self,
        worker_id: str,
        lease: LeaseSession,
        locks: JobLocks,
        places: EtcdPlaces,
        registry: Registry,
        keys: Keys,
        about: Callable[[], WorkerInfo],
        presence: Presence,
        declarations: Declarations,
    ) -> None:
        self.worker_id = worker_id
        self.lease, self.locks, self.places = lease, locks, places
        self._registry, self._keys = registry, keys
        self._about, self._presence = about, presence
        self._declarations = declarations

    async def announce(self, *, draining: bool = False) -> None:
        info = replace(self._about(), worker_id=self.worker_id, draining=draining)
        # Before the types: a job of a type that nobody knew has its handler's defaults.
        await self._declarations.make()
        for type_ in info.capacity:
            # Only if nobody did before: a pool may have written more than its name.
            await self._registry.replace(self._keys.type(type_), b"", 0)
        key = self._keys.worker(self.worker_id)
        await self._registry.put(key, info_to_proto(info).SerializeToString(), self.lease)
        self._presence.show(self.worker_id, tuple(info.capacity), info.address)

    @property
    def trusted_until(self) -> float:
        return self.lease.trusted_until

    async def leave(self) -> None:
        self._presence.hide(self.worker_id)
        await self.lease.close()
        await self.locks.close()
        await self.places.close()


class EtcdMembership(Membership):
    """Makes identities."""

    def __init__(
        self,
        client: EtcdClient,
        registry: Registry,
        keys: Keys,
        about: Callable[[], WorkerInfo],
        terms: LeaseTerms,
        presence: Presence,
        declarations: Declarations,
    ) -> None:
        self._client, self._registry, self._keys = client, registry, keys
        self._about, self._terms, self._presence = about, terms, presence
        self._declarations = declarations

    async def enter(self) -> EtcdStanding:
        terms = self._terms
        lease = await LeaseSession.grant(
            self._client, ttl_seconds=terms.ttl_seconds, margin_seconds=terms.margin_seconds
        )
        worker_id = new_worker_id()
        locks = JobLocks(self._client, self._keys, lease, worker_id, max_txn_ops=terms.max_txn_ops)
        places = EtcdPlaces(self._client, self._keys, lease, max_txn_ops=terms.max_txn_ops)
        return EtcdStanding(
            worker_id,
            lease,
            locks,
            places,
            self._registry,
            self._keys,
            self._about,
            self._presence,
            self._declarations,
        )


class EtcdSchedulers(Schedulers):
    """Watches the schedulers' registrations."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry, self._prefix = registry, keys.schedulers

    async def departures(self) -> AsyncIterator[str]:
        async with aclosing(self._registry.watch(self._prefix)) as events:
            async for event in events:
                if isinstance(event, Deleted):
                    yield event.entry.key.removeprefix(self._prefix)


def new_worker_id() -> str:
    """Unique per identity; the host's name is for people, and fits a subject and a key."""
    host = socket.gethostname().partition(".")[0].lower()
    plain = "".join(c if c.isalnum() or c == "-" else "-" for c in host if c.isascii())
    return f"w-{plain[:HOST_CHARACTERS]}-{secrets.token_hex(4)}"
