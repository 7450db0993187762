"""What the Scaler keeps in etcd.

    <p>/pools/<type>           {"spec": PoolSpec as protobuf JSON, "hold": {"desired", "until"}}
    <p>/pool-status/<type>     Pool: desired, counts, decision, alarms; written on changes only
    <p>/pool-decisions/<type>  ExplainDecisionResponse: the trail of decisions
    <p>/types/<type>           the type is known

The spec and the hold share one key, so that one condition guards both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from etcd import rpc_pb2
from google.protobuf import json_format
from jobmesh.v1 import pool_pb2, scaler_service_pb2, worker_service_pb2

from services.mesh.lease import Entry, Keys, Registry
from services.mesh.lease.etcd import EtcdClient
from services.scaler import convert
from services.scaler.domain.decision import Decision, PoolStatus
from services.scaler.domain.fleet import Worker
from services.scaler.domain.pool import Hold, PoolRecord, PoolSpec


@dataclass(frozen=True, slots=True)
class ScalerKeys:
    """The keys only Scalers use, beside those of the whole mesh."""

    mesh: Keys

    @property
    def statuses(self) -> str:
        return self.mesh.pool_statuses

    @property
    def trails(self) -> str:
        return f"{self.mesh.prefix}/pool-decisions/"


class EtcdPools:
    """Pools, each under a key of its own."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry, self._keys = registry, keys

    async def get(self, type_: str) -> PoolRecord | None:
        entry = await self._registry.get(self._keys.pool(type_))
        return pool_from_entry(entry) if entry is not None else None

    async def all(self) -> list[PoolRecord]:
        return [pool_from_entry(entry) for entry in await self._registry.entries(self._keys.pools)]

    async def create(self, spec: PoolSpec) -> PoolRecord | None:
        # The type first: a pool of an unknown type would never get work.
        await self._registry.put(self._keys.type(spec.type), b"")
        return await self.replace(PoolRecord(spec))

    async def replace(self, record: PoolRecord) -> PoolRecord | None:
        key = self._keys.pool(record.type)
        revision = await self._registry.replace(key, pool_value(record), record.revision)
        return None if revision is None else replace(record, revision=revision)

    async def delete(self, type_: str) -> bool:
        return await self._registry.delete(self._keys.pool(type_))


class EtcdStatuses:
    """What the acting Scaler found and decided.

    Every write is one transaction that holds only if the leader key is still under the writer's
    lease: what a Scaler wrote while it led, and etcd hears of later, changes nothing.
    """

    def __init__(
        self, client: EtcdClient, registry: Registry, keys: ScalerKeys, lease_id: Callable[[], int]
    ) -> None:
        self._client, self._registry = client, registry
        self._keys, self._lease_id = keys, lease_id

    async def put(self, type_: str, status: PoolStatus, trail: Sequence[Decision]) -> bool:
        explained = convert.trail_to_proto(trail).SerializeToString()
        value = convert.status_to_proto(status).SerializeToString()
        return await self._write(
            _put(self._keys.trails + type_, explained), _put(self._keys.statuses + type_, value)
        )

    async def delete(self, type_: str) -> bool:
        return await self._write(
            _delete(self._keys.trails + type_), _delete(self._keys.statuses + type_)
        )

    async def trail(self, type_: str) -> tuple[Decision, ...]:
        entry = await self._registry.get(self._keys.trails + type_)
        if entry is None:
            return ()
        message = scaler_service_pb2.ExplainDecisionResponse.FromString(entry.value)
        return convert.trail_from_proto(message)

    async def _write(self, *operations: rpc_pb2.RequestOp) -> bool:
        lease_id = self._lease_id()
        if not lease_id:
            return False
        leading = rpc_pb2.Compare(
            key=self._keys.mesh.scaler_leader.encode(),
            target=rpc_pb2.Compare.LEASE,
            lease=lease_id,
        )
        request = rpc_pb2.TxnRequest(compare=[leading], success=operations)
        return (await self._client.txn(request, repeatable=True)).succeeded


def _put(key: str, value: bytes) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key.encode(), value=value))


def _delete(key: str) -> rpc_pb2.RequestOp:
    request = rpc_pb2.DeleteRangeRequest(key=key.encode())
    return rpc_pb2.RequestOp(request_delete_range=request)


# --- values ---


def pool_value(record: PoolRecord) -> bytes:
    spec = json_format.MessageToDict(
        convert.spec_to_proto(record.spec), preserving_proto_field_name=True
    )
    value: dict[str, Any] = {"spec": spec}
    if record.hold is not None:
        until = record.hold.until
        value["hold"] = {
            "desired": record.hold.desired,
            "until": until.isoformat() if until else None,
        }
    return json.dumps(value).encode()


def pool_from_entry(entry: Entry) -> PoolRecord:
    value = json.loads(entry.value)
    # A newer Scaler may have written fields that this one does not know.
    message = json_format.ParseDict(value["spec"], pool_pb2.PoolSpec(), ignore_unknown_fields=True)
    return PoolRecord(
        spec=convert.spec_from_proto(message),
        hold=_hold(value["hold"]) if value.get("hold") else None,
        revision=entry.revision,
    )


def _hold(value: dict[str, Any]) -> Hold:
    until = value.get("until")
    return Hold(int(value["desired"]), datetime.fromisoformat(until) if until else None)


def note_from_entry(entry: Entry) -> str:
    """Why a type is paused."""
    return entry.value.decode(errors="replace")


def status_from_entry(entry: Entry) -> PoolStatus:
    return convert.status_from_proto(pool_pb2.Pool.FromString(entry.value))


def worker_from_entry(entry: Entry) -> Worker:
    return convert.worker_from_proto(worker_service_pb2.WorkerInfo.FromString(entry.value))
