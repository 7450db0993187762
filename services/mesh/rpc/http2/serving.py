"""What all connections of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.mesh.rpc.http2.deadlines import Deadlines

if TYPE_CHECKING:
    from services.mesh.rpc.http2.connection import Connection

#: What serves the calls of a path: gRPC's RpcMethodHandler, with coroutines of request and context.
Find = Callable[[str], Any]


@dataclass(slots=True)
class Serving:
    """The handlers, the bounds, and every connection there is."""

    loop: asyncio.AbstractEventLoop
    find: Find
    most_streams: int
    largest_message: int
    largest_sent: int
    deadlines: Deadlines = field(default_factory=Deadlines)
    connections: set[Connection] = field(default_factory=set)
    #: Of calls under way.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    #: Connections whose peer broke a rule.
    broken: int = 0
    _gone: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._gone.set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the handler of a call."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not self.tasks:
            self._gone.set()

    async def emptied(self, seconds: float) -> None:
        """Until no connection is left and no call, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.connections or self.tasks:
                    self._gone.clear()
                    await self._gone.wait()
