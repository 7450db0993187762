"""The stream of reports between a worker and an Orchestrator: a pair of queues that may break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import DependencyUnavailable
from services.worker.convert import answers_from_proto, reports_to_proto
from services.worker.domain.ending import Answer, Report
from services.worker.ports import ReportStream
from tests.simulation.loop import on_host

if TYPE_CHECKING:
    from tests.simulation.network import Network
    from tests.simulation.world import World

_BROKEN = object()


class Pipe:
    """One open stream. Broken, both ends hear of it after what was under way."""

    def __init__(self, worker: str, orchestrator: str, network: Network) -> None:
        self.ends = (worker, orchestrator)
        self._network = network
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._responses: asyncio.Queue[Any] = asyncio.Queue()

    def close(self) -> None:
        self._requests.put_nowait(_BROKEN)
        self._responses.put_nowait(_BROKEN)

    async def say(self, request: pb.ReportAttemptsRequest) -> None:
        await self._pass(self._requests, request)

    async def answer(self, response: pb.ReportAttemptsResponse) -> None:
        await self._pass(self._responses, response)

    async def _pass(self, queue: asyncio.Queue[Any], item: Any) -> None:
        await self._network.hop()
        weather = self._network.weather
        if self._network.is_cut(*self.ends) or self._network.chance(weather.lost_before):
            # Nothing is lost from a stream without its end.
            self.close()
            raise DependencyUnavailable("orchestrator", "the stream broke")
        queue.put_nowait(item)

    async def requests(self) -> AsyncIterator[pb.ReportAttemptsRequest]:
        while (item := await self._requests.get()) is not _BROKEN:
            yield item

    async def responses(self) -> AsyncIterator[pb.ReportAttemptsResponse]:
        while (item := await self._responses.get()) is not _BROKEN:
            yield item
        raise DependencyUnavailable("orchestrator", "the stream broke")


class PipeStream(ReportStream):
    """The worker's end, as its adapter would make it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._columns = False

    async def send(self, reports: Sequence[Report]) -> None:
        now = asyncio.get_running_loop().time()
        await self._pipe.say(reports_to_proto(reports, now, columns=self._columns))

    async def answers(self) -> AsyncIterator[Sequence[Answer]]:
        async for response in self._pipe.responses():
            self._columns = self._columns or response.columns
            if response.verdicts or response.judged:
                yield answers_from_proto(response)


class Orchestrators:
    """The replicas, as one worker reaches them."""

    def __init__(self, world: World, host: str) -> None:
        self._world, self._host = world, host

    @asynccontextmanager
    async def open(self, worker_id: str) -> AsyncIterator[ReportStream]:
        network = self._world.network
        await network.hop()
        replica = self._world.any_orchestrator()
        if replica is None or network.is_cut(self._host, replica.host.name):
            raise DependencyUnavailable("orchestrator", "nobody answers")
        pipe = Pipe(self._host, replica.host.name, network)
        self._world.pipes.append(pipe)
        on_host(replica.host, replica.serve(pipe), "reports")
        try:
            # Every other worker is of a version that knows no columns.
            hello = pb.ReportHello(worker_id=worker_id, columns=self._host[-1] in "02468")
            await pipe.say(pb.ReportAttemptsRequest(hello=hello))
            yield PipeStream(pipe)
        finally:
            pipe.close()
