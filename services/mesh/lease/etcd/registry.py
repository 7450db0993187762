"""Small keys in etcd: membership under leases, and settings that stay."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from etcd import rpc_pb2 as pb

from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.failure import Refused
from services.mesh.lease.etcd.listing import PAGE_SIZE, read_prefix, to_entry
from services.mesh.lease.etcd.watch import watch_prefix
from services.mesh.lease.port import Entry, Lease, LeaseLost, Registry, WatchEvent


class EtcdRegistry(Registry):
    """The registry of a mesh; keys are full names, as `Keys` builds them."""

    def __init__(self, client: EtcdClient, *, page_size: int = PAGE_SIZE) -> None:
        self._client = client
        self._page_size = page_size

    async def get(self, key: str) -> Entry | None:
        found = await self._client.range(key.encode())
        return to_entry(found.kvs[0]) if found.kvs else None

    async def entries(self, prefix: str) -> list[Entry]:
        found, _ = await read_prefix(self._client, prefix, self._page_size)
        return found

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        lease_id = lease.lease_id if lease else 0
        try:
            done = await self._client.put(key.encode(), value, lease_id=lease_id)
        except Refused as refused:
            raise _explained(refused, lease) from refused
        return done.header.revision

    async def replace(
        self, key: str, value: bytes, revision: int, lease: Lease | None = None
    ) -> int | None:
        name = key.encode()
        unchanged = pb.Compare(key=name, target=pb.Compare.MOD, mod_revision=revision)
        put = pb.PutRequest(key=name, value=value, lease=lease.lease_id if lease else 0)
        request = pb.TxnRequest(compare=[unchanged], success=[pb.RequestOp(request_put=put)])
        try:
            done = await self._client.txn(request)
        except Refused as refused:
            raise _explained(refused, lease) from refused
        return done.header.revision if done.succeeded else None

    async def delete(self, key: str, revision: int | None = None) -> bool:
        if revision is None:
            return await self._client.delete(key.encode()) > 0
        name = key.encode()
        unchanged = pb.Compare(key=name, target=pb.Compare.MOD, mod_revision=revision)
        delete = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))
        return (
            await self._client.txn(pb.TxnRequest(compare=[unchanged], success=[delete]))
        ).succeeded

    def watch(self, prefix: str) -> AsyncGenerator[WatchEvent, None]:
        return watch_prefix(self._client, prefix, page_size=self._page_size)


def _explained(refused: Refused, lease: Lease | None) -> Refused | LeaseLost:
    if lease is not None and refused.lease_not_found:
        return LeaseLost(lease.lease_id, "etcd does not know it")
    return refused
