"""Single submissions that come together, sent together.

A call costs client and service several times what an item of a batch does, whatever it carries. So
while a few calls of a client are under way, those that come wait for the first of them to end and
then go as one batch; and while a batch is under way, the next one gathers, with those who were just
answered and come back. Whoever submits one job after the other never waits; and a batch is answered
item by item, so nobody bears the mistakes of others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from jobmesh.client.status import from_item
from jobmesh.client.submission import MAX_BATCH_BYTES, MAX_BATCH_ITEMS, fresh_tag
from jobmesh.errors import CallError, call_error
from jobmesh.v1.enqueue_service_pb2 import (
    EnqueueBatchRequest,
    EnqueueItem,
    EnqueueRequest,
    EnqueueResult,
)

if TYPE_CHECKING:
    from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceAsyncStub

#: Calls under way from which on others wait for one of them.
UNDER_WAY = 4
#: Around the job in an item, and around the items.
_AROUND = 300


@dataclass(frozen=True, slots=True)
class Stored:
    """The job that a submission led to."""

    id: str
    existing: bool


@dataclass(slots=True)
class _Waiting:
    request: EnqueueRequest
    timeout: float
    stored: asyncio.Future[Stored]


class Gathering:
    """The single submissions of one client to one namespace; `on_idle`: none is under way now."""

    def __init__(self, stub: EnqueueServiceAsyncStub, on_idle: Callable[[], object]) -> None:
        self._stub, self._on_idle = stub, on_idle
        self._alone = 0
        #: A batch is under way, or about to be.
        self._is_batching = False
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._tag = fresh_tag()

    @property
    def tag(self) -> str:
        """What a key that is made now begins with: the tag of the next batch, if it will wait."""
        return self._tag if self._must_wait else ""

    @property
    def _must_wait(self) -> bool:
        return self._is_batching or self._alone >= UNDER_WAY

    async def __call__(self, request: EnqueueRequest, *, timeout: float) -> Stored:
        """Submit, alone or with others; AioRpcError or CallError if it was not stored."""
        if not self._must_wait:
            self._alone += 1
            try:
                answer = await self._stub.Enqueue(request, timeout=timeout)
            finally:
                self._alone -= 1
                self._ended_alone()
            return Stored(answer.job.id, answer.existing)
        stored: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, timeout, stored))
        try:
            async with asyncio.timeout(timeout):
                return await stored
        except TimeoutError:
            code, nothing = grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, nothing, nothing) from None

    def _ended_alone(self) -> None:
        if self._waiting and not self._is_batching:
            self._gather()
        elif not self._alone and not self._is_batching:
            self._on_idle()

    def _gather(self) -> None:
        """A call has ended. Who was answered just now is heard before the next batch goes."""
        self._is_batching = True
        asyncio.get_running_loop().call_soon(self._go)

    def _go(self) -> None:
        batch = self._next_batch()
        if batch:
            self._tag = fresh_tag()
            self._sending = asyncio.create_task(self._send(batch), name="gathered")
            return
        self._is_batching = False
        if not self._alone:
            self._on_idle()

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < MAX_BATCH_ITEMS:
            if self._waiting[0].stored.done():  # its caller has gone
                self._waiting.popleft()
                continue
            size += self._waiting[0].request.ByteSize() + _AROUND
            if batch and size > MAX_BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        request = EnqueueBatchRequest(
            namespace=batch[0].request.namespace,
            items=[
                EnqueueItem(job=one.request.job, idempotency_key=one.request.idempotency_key)
                for one in batch
            ],
        )
        try:
            answer = await self._stub.EnqueueBatch(request, timeout=max(o.timeout for o in batch))
        except BaseException as error:
            for one in batch:
                if not one.stored.done():
                    one.stored.set_exception(_of_one(error))
            if not isinstance(error, Exception):
                raise
        else:
            for number, (one, result) in enumerate(zip(batch, answer.results, strict=True)):
                if not one.stored.done():
                    _settle(one.stored, result, number)
        finally:
            self._gather()


def _of_one(error: BaseException) -> BaseException:
    """A batch that was cancelled was not cancelled by those who wait for it."""
    if isinstance(error, Exception):
        return error
    return call_error("CANCELLED", "the client was closed")


def _settle(stored: asyncio.Future[Stored], result: EnqueueResult, number: int) -> None:
    if result.HasField("error"):
        stored.set_exception(_alone(result, number))
    else:
        stored.set_result(Stored(result.job_id, result.existing))


def _alone(result: EnqueueResult, number: int) -> CallError:
    """The error as a call of its own would have had it: nobody asked for a batch."""
    place = f"items[{number}]."
    error = result.error
    error.message = error.message.replace(place, "")
    for violation in error.field_violations:
        violation.field = violation.field.removeprefix(place)
    return from_item(error)
