"""Many jobs in few messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from jobmesh.client.caller import pauses
from jobmesh.client.chains import (
    LONGEST_CHAIN,
    PARENT_NOT_STORED,
    Waits,
    depth_in,
    lost_parent,
    note_place,
    parents_of,
    tie,
)
from jobmesh.client.session import Session
from jobmesh.client.status import from_item
from jobmesh.client.stream import JobStream
from jobmesh.client.submission import (
    MAX_BATCH_ITEMS,
    ON_FAILURE,
    Ack,
    Batch,
    Key,
    Submission,
    to_spec,
)
from jobmesh.errors import CallError, InputError
from jobmesh.options import NewJob
from jobmesh.v1.enqueue_service_pb2 import EnqueueBatchRequest, EnqueueItem, EnqueueResult

#: Batches under way at once: enough to keep the service busy while the next one is built.
IN_FLIGHT = 4
#: After so many batches it is clear that there are many jobs: the rest goes over a stream.
STREAM_AFTER = 2


@dataclass(slots=True)
class Parcel:
    """A batch, and a place for the ack of each of its jobs; bad ones have theirs already."""

    #: The call it belongs to.
    call: object
    batch: Batch = field(default_factory=Batch)
    acks: list[Ack] = field(default_factory=list)
    #: Set when every job has its ack.
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    #: How many jobs of the parcel each one has before it in a chain; others have none.
    depths: dict[int, int] = field(default_factory=dict)
    #: Some of its jobs wait for others of this call.
    chained: bool = False
    #: Seconds that the mesh asks to wait before what is open is sent again.
    pace: float = 0.0


class BulkEnqueue:
    """One call of `enqueue_many`: packs batches, sends a few at once, sends the unlucky again."""

    def __init__(self, session: Session, namespace: str, make_keys: bool) -> None:
        self._session = session
        self._namespace = namespace
        self._make_keys = make_keys
        self._stream = JobStream(session, namespace)
        self._sent = 0
        self._streaming = True

    async def run(self, jobs: Iterable[NewJob]) -> list[Ack]:
        """One ack per job, in the order given. What `jobs` raises comes out as it is."""
        return [ack async for ack in self.acks(jobs)]

    async def acks(self, jobs: Iterable[NewJob]) -> AsyncIterator[Ack]:
        """The same as they come: memory stays flat, however many jobs there are."""
        sending: deque[asyncio.Task[list[Ack]]] = deque()
        try:
            async for parcel in self._parcels(jobs):
                if len(sending) >= IN_FLIGHT:
                    for ack in await sending[0]:
                        yield ack
                    sending.popleft()
                sending.append(asyncio.create_task(self._send(parcel), name="enqueue-batch"))
                await asyncio.sleep(0)  # off with it, before the next one is packed
            while sending:
                for ack in await sending[0]:
                    yield ack
                sending.popleft()
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
            await self._stream.close()

    async def _parcels(self, jobs: Iterable[NewJob]) -> AsyncIterator[Parcel]:
        parcel = Parcel(self)
        for new in jobs:
            submission = await self._submission(new)
            if isinstance(submission, Ack):
                note_place(new, parcel)
                parcel.acks.append(submission)
            else:
                if not _take(parcel, submission):
                    yield parcel
                    parcel = Parcel(self)
                    _take(parcel, submission)
                note_place(new, parcel)
                parcel.acks.append(Ack())
            if len(parcel.acks) >= MAX_BATCH_ITEMS:
                yield parcel
                parcel = Parcel(self)
        if parcel.acks:
            yield parcel

    async def _submission(self, new: NewJob) -> Submission | Ack:
        try:
            payload = await self._session.payload(new, self._namespace)
            waits = Waits.of(new) if new.after != () else None
            parents = parents_of(self, waits.fresh, ON_FAILURE) if waits else ()
        except (InputError, CallError) as error:  # one bad item does not hinder the others
            return Ack(error=error)
        spec = to_spec(new, payload, waits.stored if waits else None)
        return Submission(0, spec, Key.of(new.idempotency_key, self._make_keys), parents)

    async def _send(self, parcel: Parcel) -> list[Ack]:
        open_ones = parcel.batch.submissions
        if parcel.chained:
            open_ones = await self._unhindered(parcel)
        tries = self._session.caller.attempts
        for pause in pauses():
            tries -= 1
            open_ones = await self._once(parcel, open_ones, last=tries <= 0) if open_ones else []
            if not open_ones:
                break
            # No longer than a call may take, over all its tries.
            await asyncio.sleep(max(pause, min(parcel.pace, self._session.caller.timeout)))
        parcel.sent.set()
        return parcel.acks

    async def _unhindered(self, parcel: Parcel) -> list[Submission]:
        """Those whose parents in earlier parcels were stored, when that is known of all."""
        ready: list[Submission] = []
        for submission in parcel.batch.submissions:
            for parent in submission.parents:
                if parent.place.parcel is not parcel:
                    await parent.place.parcel.sent.wait()
            lost = lost_parent(submission.parents)
            if lost is None:
                ready.append(submission)
            else:
                parcel.acks[submission.index] = lost
        return ready

    async def _once(
        self, parcel: Parcel, submissions: list[Submission], last: bool
    ) -> list[Submission]:
        """Sends them, notes what is settled, and returns those worth another try."""
        acks: list[Ack]
        items = [submission.item() for submission in submissions]
        if parcel.chained:
            tie(items, submissions, parcel)
        try:
            results = await self._results(items)
        except CallError as error:
            acks = [Ack(error=error)] * len(submissions)
        else:
            acks = [_ack(result) for result in results]
        return _settle(parcel, submissions, acks, last)

    async def _results(self, items: list[EnqueueItem]) -> Sequence[EnqueueResult]:
        self._sent += 1
        if self._streaming and self._sent > STREAM_AFTER:
            try:
                return await self._stream.send(items)
            except CallError as error:
                if error.status != "UNIMPLEMENTED":
                    raise
                self._streaming = False  # an older server
        request = EnqueueBatchRequest(namespace=self._namespace, items=items)
        answer = await self._session.call(self._session.stub.EnqueueBatch, request, repeat=False)
        return answer.results


def _take(parcel: Parcel, submission: Submission) -> bool:
    """Puts it into the parcel, unless it belongs into the next one."""
    submission.index = len(parcel.acks)
    depth = depth_in(parcel, submission.parents) if submission.parents else 0
    if depth >= LONGEST_CHAIN or not parcel.batch.add(submission):
        return False
    if submission.parents:
        parcel.chained, parcel.depths[submission.index] = True, depth
    return True


def _settle(
    parcel: Parcel, submissions: list[Submission], acks: list[Ack], last: bool
) -> list[Submission]:
    again: list[Submission] = []
    parcel.pace = 0.0
    for submission, ack in zip(submissions, acks, strict=True):
        error = ack.error
        if not last and isinstance(error, CallError) and _may_go_again(submission, error):
            again.append(submission)
            parcel.pace = max(parcel.pace, error.retry_after or 0)
        else:
            parcel.acks[submission.index] = _told(submission, ack)
    return again


def _told(submission: Submission, ack: Ack) -> Ack:
    if not isinstance(ack.error, CallError):
        return ack
    return Ack(error=submission.key.told(ack.error))


def _may_go_again(submission: Submission, error: CallError) -> bool:
    """A job whose parent has no id was not stored: it shares that one's fate. What else is told of
    it, as of all when a message got no answer, its own key decides.
    """
    if submission.parents:
        if any(parent.place.ack.error is not None for parent in submission.parents):
            return False
        if error.reason == PARENT_NOT_STORED:
            return True  # and its parent has no last word yet: that one goes again
    return submission.key.may_repeat(error)


def _ack(result: EnqueueResult) -> Ack:
    if result.HasField("error"):
        return Ack(error=from_item(result.error))
    return Ack(id=result.job_id, existing=result.existing)
