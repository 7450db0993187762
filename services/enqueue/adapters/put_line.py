"""One call to an Orchestrator that carries many puts, each as certain as a call of its own.

A put over an open line costs both sides half of what a call does. It is only ever a shorter way:

* While no line is open, or where it may not be good, a put goes by a call of its own, which can say
  for certain that it was never sent. The line is opened beside it.
* A line is used for half a minute: replicas get their share, and it is gone before its connection
  is. It is left as soon as the other side drains, breaks off, or keeps a put waiting for long.
* When it breaks, nobody knows what became of the puts under way: that is OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import Code, MeshError, OutcomeUnknown
from services.mesh.rpc.calls import StreamCall
from services.mesh.rpc.items import from_item_error
from services.mesh.runtime import Overdue, Tasks

if TYPE_CHECKING:
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceAsyncStub

#: As long as a call of its own may take.
PUT_SECONDS = 10.0
#: A put that waits for so long is the last of its line: the other side may be frozen.
DOUBT_SECONDS = 1.0
LINE_SECONDS = 30.0
OPENING_SECONDS = 5.0
#: Until the next try, after one that failed; longer with an Orchestrator that knows no lines.
PAUSE_SECONDS = 1.0
UNKNOWN_SECONDS = 60.0
#: What is larger goes by itself: a message that is too large for the other side ends its call.
MOST_BYTES = 1 << 20


class PutLine:
    """The line that is open now, if any; a component."""

    name = "put line"

    def __init__(self, orchestrator: OrchestratorServiceAsyncStub, tasks: Tasks) -> None:
        self._orchestrator, self._tasks = orchestrator, tasks
        self._line: _Line | None = None
        self._opening = False
        self._not_before = 0.0

    async def start(self) -> None:
        """Nothing to do: it is opened beside the first put."""

    async def stop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.hang_up()

    def taken(self, size: int) -> _Line | None:
        """The line, for a put of so many bytes; None: it should go by a call of its own."""
        line = self._line
        if line is not None and line.is_open:
            return line if size <= MOST_BYTES else None
        if not self._opening and asyncio.get_running_loop().time() >= self._not_before:
            self._opening = True
            self._tasks.spawn(self._open(), "put line", vital=False)
        return None

    async def _open(self) -> None:
        pause = PAUSE_SECONDS
        call: StreamCall = self._orchestrator.PutJobsStream()  # type: ignore[assignment]
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                if await call.read() is grpc.aio.EOF:
                    return  # it ended before it said that it takes puts
            line = self._line = _Line(call, self._tasks)
            self._opening, pause = False, 0.0
            await line.listen()
        except MeshError as error:
            if error.code is Code.UNIMPLEMENTED:
                pause = UNKNOWN_SECONDS
        except TimeoutError:
            pass
        finally:
            call.cancel()
            if pause:
                self._opening = False
                self._not_before = asyncio.get_running_loop().time() + pause


class _Line:
    """An open call."""

    def __init__(self, call: StreamCall, tasks: Tasks) -> None:
        self._call, self._tasks = call, tasks
        self._last = 0
        self._waiting: dict[int, asyncio.Future[pb.PutJobsResponse]] = {}
        self._writing = asyncio.Lock()
        self._slow: Overdue[int] = Overdue(DOUBT_SECONDS, lambda _: self.leave())
        self._late: Overdue[int] = Overdue(PUT_SECONDS, lambda _: self.hang_up())
        self.is_open = True
        self._age = asyncio.get_running_loop().call_later(LINE_SECONDS, self.leave)

    async def put(self, request: pb.PutJobsRequest) -> pb.PutJobsResponse:
        """As PutJobs."""
        self._last = number = self._last + 1
        answer: asyncio.Future[pb.PutJobsResponse] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._slow.begin(number)
        self._late.begin(number)
        message = pb.PutJobsStreamRequest(put_id=number, put=request, timeout=_TIMEOUT)
        try:
            await self._write(message)
            return await answer
        finally:
            self._waiting.pop(number, None)
            answer.cancel()  # if the write failed nobody asks for it, and that is no news to log
            self._slow.end(number)
            self._late.end(number)

    async def listen(self) -> None:
        """Hand out answers until the call is over."""
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._hear(response)
        except MeshError:
            pass  # why it broke says nothing of the puts under way
        finally:
            self.is_open = False
            self._age.cancel()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(OutcomeUnknown("unknown"))

    def leave(self) -> None:
        """Take no more puts; those under way are still answered."""
        if self.is_open:
            self.is_open = False
            self._age.cancel()
            self._tasks.spawn(self._say_goodbye(), "put line ends", vital=False)

    def hang_up(self) -> None:
        """End the call; what is under way is not known, then."""
        self.is_open = False
        self._age.cancel()
        self._call.cancel()

    def _hear(self, response: pb.PutJobsStreamResponse) -> None:
        if response.draining:
            self.leave()
        answer = self._waiting.get(response.put_id)
        if answer is None or answer.done():
            return
        if response.HasField("error"):
            answer.set_exception(from_item_error(response.error))
        else:
            answer.set_result(response.answer)

    async def _write(self, message: pb.PutJobsStreamRequest) -> None:
        """One after the other, as gRPC wants it."""
        try:
            async with self._writing:
                await self._call.write(message)
        except (MeshError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise OutcomeUnknown("unknown") from error  # it broke, or was hung up

    async def _say_goodbye(self) -> None:
        with suppress(MeshError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.done_writing()


_TIMEOUT = Duration(seconds=int(PUT_SECONDS))
