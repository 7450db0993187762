"""Many puts over one call: read on while shards write, each answered when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import OutcomeUnknown
from services.mesh.rpc.interceptors.errors import explained
from services.mesh.rpc.interceptors.method import Call, Method
from services.mesh.rpc.items import to_item_error
from services.mesh.runtime import Overdue, deadline
from services.mesh.wire.values import timedelta_of
from services.orchestrator.conversation import Answers

Put = Callable[[pb.PutJobsRequest], Awaitable[pb.PutJobsResponse]]

#: Puts of one stream that may be under way at once, or wait for their answers to be read; then it
#: is not read on.
PUTS_UNDER_WAY = 16
#: A put that takes longer is given up, whatever its caller said: it has a place of the above.
MOST_SECONDS = 60.0
STREAM = Method("jobmesh.v1.OrchestratorService", "PutJobsStream", checked=False)


class PutStream:
    """The puts of one caller. What holds for a call of its own holds for each of them: a deadline,
    a task to be cancelled in, an error that says what was wrong.
    """

    def __init__(self, put: Put, context: Any) -> None:
        self._put, self._call = put, Call(STREAM, context)
        self._under_way: set[asyncio.Task[None]] = set()
        self._late: Overdue[asyncio.Task[None]] = Overdue(MOST_SECONDS, self._cut)
        #: Under way and given up: they are cancelled, but their caller has not gone.
        self._given_up: set[asyncio.Task[None]] = set()
        self._read_all = False
        self._answers: Answers[pb.PutJobsStreamResponse] = Answers(PUTS_UNDER_WAY)
        self._answers.say(pb.PutJobsStreamResponse())

    async def read(self, requests: AsyncIterator[pb.PutJobsStreamRequest]) -> None:
        try:
            async for request in requests:
                await self._answers.begin()
                self._begin(request)
        finally:
            self._read_all = True
            self._end_if_done()

    def responses(self) -> AsyncIterator[pb.PutJobsStreamResponse]:
        return self._answers.all()

    def say_drain(self) -> None:
        self._answers.say(pb.PutJobsStreamResponse(draining=True))

    async def stop(self) -> None:
        """End what is still under way: its caller has gone."""
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    def _begin(self, request: pb.PutJobsStreamRequest) -> None:
        task = asyncio.create_task(self._serve(request), name="put of a stream")
        self._under_way.add(task)
        self._late.begin(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._late.end(task)
        self._under_way.discard(task)
        self._given_up.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._answers.give_up()
        self._end_if_done()

    async def _serve(self, request: pb.PutJobsStreamRequest) -> None:
        given = request.HasField("timeout")
        deadline.start(timedelta_of(request.timeout).total_seconds() if given else MOST_SECONDS)
        response = pb.PutJobsStreamResponse(put_id=request.put_id)
        try:
            response.answer.CopyFrom(await self._put(request.put))
        except Exception as error:
            response.error.CopyFrom(to_item_error(explained(self._call, error)))
        except asyncio.CancelledError:
            if self._is_cancelled():
                raise
            response.error.CopyFrom(to_item_error(OutcomeUnknown("unknown")))
        self._answers.answer(response)

    def _end_if_done(self) -> None:
        if self._read_all and not self._under_way:
            self._answers.end()

    def _cut(self, task: asyncio.Task[None]) -> None:
        self._given_up.add(task)
        task.cancel()

    def _is_cancelled(self) -> bool:
        """Whether this put's caller has gone. Otherwise it took too long, or what it waited for was
        cancelled, as the end of the process does.
        """
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0 and task not in self._given_up
