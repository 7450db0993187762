"""Who decides what is an orphan, and which replica collects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.app.collecting import Holds
from services.mesh.lease import Election, Lease, Registry

if TYPE_CHECKING:
    # Generated stubs have an async twin for type checkers only.
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub

#: How long to wait for word whether the key is ours.
ELECTION_SECONDS = 5.0


class OrchestratorOrphans:
    """Asks the Orchestrators, which ask every shard."""

    def __init__(self, orchestrator: OrchestratorServiceAsyncStub) -> None:
        self._orchestrator = orchestrator

    async def inputs(self, keys: Sequence[str]) -> Sequence[str]:
        request = pb.FindOrphansRequest(input_keys=keys)
        return (await self._orchestrator.FindOrphans(request)).input_keys

    async def outputs(self, keys: Sequence[str]) -> Sequence[str]:
        request = pb.FindOrphansRequest(output_keys=keys)
        return (await self._orchestrator.FindOrphans(request)).output_keys


class EtcdTurns:
    """A turn is an election under a lease of its own, given up at the end of the turn."""

    def __init__(
        self, registry: Registry, key: str, name: str, grant: Callable[[], Awaitable[Lease]]
    ) -> None:
        self._registry, self._key, self._name, self._grant = registry, key, name, grant

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Holds | None]:
        lease = await self._grant()
        election = Election(self._registry, lease, self._key, self._name)
        decided = asyncio.Event()
        election.on_change(lambda _: decided.set())
        try:
            await election.start()
            with suppress(TimeoutError):
                async with asyncio.timeout(ELECTION_SECONDS):
                    await decided.wait()
            yield (lambda: election.is_leader) if election.is_leader else None
        finally:
            await election.stop()
            await lease.close()
