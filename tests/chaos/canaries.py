"""Canaries: jobs submitted because of a fault, to see how long the mesh needs to serve one again.

Keyed, so that each goes to the shard it is meant for and is sent again until somebody answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.mesh.jobs.ids import bucket_for_key
from services.mesh.jobs.topology import BucketMap
from tests.chaos.calls import Ring, connect
from tests.chaos.clients import ChaosClient
from tests.chaos.history import Journal, now
from tests.chaos.orders import Order
from tests.chaos.plan import Fault

NAMESPACE = "canary"
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
OWN, OTHER, ANY = "own shard", "other shard", "any"
#: Which canaries fly when a fault strikes, and when it has been undone.
WHEN_STRUCK: Mapping[str, tuple[str, ...]] = {
    "kill.scheduler": (ANY,),
    "kill.orchestrator": (ANY,),
    "kill.enqueue": (ANY,),
    "kill.nats": (ANY,),
    "kill.etcd": (ANY,),
    "kill.shard": (OTHER,),
    "stop.shard": (OTHER,),
    "kill.all": (ANY,),
}
WHEN_HEALED: Mapping[str, tuple[str, ...]] = {
    "kill.shard": (OWN,),
    "restart.shard": (OWN,),
    "stop.shard": (OWN,),
    "readonly.shard": (OWN,),
    "full.shard": (OWN,),
    "quorum.etcd": (ANY,),
    "stop.nats": (ANY,),
}


class Canaries:
    """Sends them, waits for them, writes `canaries.jsonl`.

    One per fault; or, with `waves`, one per shard that is meant, at each of these times after it.
    """

    def __init__(
        self, targets: Sequence[str], shards: int, folder: Path, waves: Sequence[float] = ()
    ) -> None:
        self._clients = connect(targets)
        self._waves = waves
        self._shards = [f"s{index}" for index in range(shards)]
        self._map = BucketMap.even(self._shards)
        self._ledger = str(folder / "effects.log")
        self._history = Journal(folder / "history-canaries.jsonl")
        self._log = Journal(folder / "canaries.jsonl")
        self._flying: set[asyncio.Task[None]] = set()
        self._count = 0

    def struck(self, fault: Fault, line: Mapping[str, Any]) -> None:
        for where in WHEN_STRUCK.get(fault.kind, ()):
            self._send(fault, "struck", where)

    def healed(self, fault: Fault, line: Mapping[str, Any]) -> None:
        for where in WHEN_HEALED.get(fault.kind, ()):
            self._send(fault, "healed", where)

    async def landed(self) -> None:
        """Until none is under way."""
        while self._flying:
            await asyncio.gather(*self._flying)

    async def close(self) -> None:
        """Wait for those still under way."""
        await self.landed()
        for client in self._clients:
            await client.close()
        self._history.close()
        self._log.close()

    def _send(self, fault: Fault, when: str, where: str) -> None:
        shards = self._meant(fault.target, where)
        if not self._waves:
            self._launch(fault, when, where, shards, 0.0)
        for after in self._waves:
            for shard in shards:
                self._launch(fault, when, where, [shard], after)

    def _launch(
        self, fault: Fault, when: str, where: str, shards: Sequence[str], after: float
    ) -> None:
        self._count += 1
        ref = f"canary-{self._count}"
        order = Order(
            kind="canary",
            ref=ref,
            namespace=NAMESPACE,
            type="hop",
            input={"ledger": self._ledger, "tag": ref},
            key=self._key(ref, shards),
        )
        line = {"fault": fault.number, "kind": fault.kind, "when": when, "where": where, "ref": ref}
        flight = asyncio.create_task(self._fly(order, line, after, self._count), name=ref)
        self._flying.add(flight)
        flight.add_done_callback(self._flying.discard)

    async def _fly(self, order: Order, line: dict[str, Any], after: float, first: int) -> None:
        await asyncio.sleep(after)
        acked: list[str] = []
        ring = Ring(self._clients, first)
        client = ChaosClient(order.ref, ring, self._history, lambda job, space: acked.append(job))
        begin = now()
        await client.submit([order])
        if acked:
            line["acked"] = now() - begin
            if await self._has_ended(client, order, acked[0]):
                line["ended"] = now() - begin
        self._log.write(**line, began=begin, lasted=now() - begin)

    async def _has_ended(self, client: ChaosClient, order: Order, job: str) -> bool:
        deadline = now() + _PATIENCE_SECONDS
        while now() < deadline:
            if await client.read(order, job) >= 4:
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    def _meant(self, target: str, where: str) -> list[str]:
        """The shards that canaries for a place go to."""
        own = "s" + target.rpartition("-")[2]
        return [name for name in self._shards if where == ANY or (name == own) == (where == OWN)]

    def _key(self, ref: str, shards: Sequence[str]) -> str:
        """A key whose job is stored on one of them."""
        for number in range(1000):
            key = f"{ref}-{number}"
            if self._map.shard_of(bucket_for_key(NAMESPACE, key)) in shards:
                return key
        raise AssertionError("no key leads to that shard")
