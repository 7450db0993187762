"""AsyncClient: submit, query, cancel and watch jobs from a coroutine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import grpc

from jobmesh.client.bulk import BulkEnqueue
from jobmesh.client.caller import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS, Caller
from jobmesh.client.changes import JobChanges
from jobmesh.client.convert import to_event, to_filter, to_job
from jobmesh.client.handle import AsyncJobHandle
from jobmesh.client.schedules import AsyncSchedules
from jobmesh.client.session import Session
from jobmesh.client.submission import Ack, EnqueueFailed, Key, to_spec
from jobmesh.client.types import TypeCalls
from jobmesh.client.watch import PATIENCE_SECONDS, Watch
from jobmesh.errors import CallError
from jobmesh.handlers import JobFunction
from jobmesh.model import Job, JobEvent, JobState
from jobmesh.options import EnqueueOptions, NewJob, new_job
from jobmesh.v1 import enqueue_service_pb2 as pb

if TYPE_CHECKING:
    from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceAsyncStub
    from jobmesh.v1.job_pb2 import JobFilter
    from jobmesh.v1.payload_pb2 import Payload

log = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "default"
PAGE_SIZE = 200


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of `pages()`; `missing_shards` names those that did not answer."""

    jobs: Sequence[Job]
    missing_shards: Sequence[str]


class AsyncClient(JobChanges, TypeCalls):
    """A connection to the mesh. Use it as an async context manager, or close it.

    `address` is host:port of EnqueueService (or any gRPC target); without it JOBMESH_ADDRESS, else
    the local mesh. `timeout` is the deadline of a call in seconds, over all its tries.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempts: int = DEFAULT_ATTEMPTS,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        caller = Caller(address, timeout=timeout, attempts=attempts, credentials=credentials)
        self._session = Session(caller, namespace)
        self.schedules = AsyncSchedules(self._session)

    @property
    def address(self) -> str:
        return self._session.caller.address

    @property
    def stub(self) -> EnqueueServiceAsyncStub:
        """The generated stub, for what this class does not spell out."""
        return self._session.stub

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.caller.close()

    # --- submit

    async def enqueue(
        self,
        type: str | JobFunction[..., Any],
        input: Any = None,
        *,
        namespace: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> AsyncJobHandle:
        """Submits a job: when it returns, the job is durable. Options: the fields of NewJob.

        Calls that are made beside each other share messages, and are answered each by itself.
        """
        new = new_job(type, input, options)
        space = self._session.namespace(namespace)
        key = Key.of(new.idempotency_key, tag=self._session.submit(space).tag)
        request = pb.EnqueueRequest(
            namespace=space,
            job=to_spec(new, await self._session.payload(new, space)),
            idempotency_key=key.value,
        )

        def repeat(error: CallError) -> bool:
            allowed = key.may_repeat(error)
            request.idempotency_key = key.value
            return allowed

        try:
            stored = await self._session.call(self._session.submit(space), request, repeat=repeat)
        except CallError as error:
            told = key.told(error)
            if told is error:
                raise
            raise told from error
        return AsyncJobHandle(self._session, stored.id, space, existing=stored.existing)

    async def enqueue_many(
        self,
        jobs: Iterable[NewJob],
        *,
        namespace: str | None = None,
        raise_errors: bool = True,
        make_keys: bool = True,
    ) -> list[Ack]:
        """Submits any number of jobs, many of them over a stream; one ack each, in order.

        EnqueueFailed if some were not stored, unless `raise_errors` is False. `make_keys=False`
        submits without idempotency keys: a little cheaper, but a job whose answer got lost is then
        reported as an error instead of being sent again.
        """
        bulk = BulkEnqueue(self._session, self._session.namespace(namespace), make_keys)
        acks = await bulk.run(jobs)
        if raise_errors and not all(ack.ok for ack in acks):
            raise EnqueueFailed(acks)
        return acks

    def enqueue_stream(
        self, jobs: Iterable[NewJob], *, namespace: str | None = None, make_keys: bool = True
    ) -> AsyncIterator[Ack]:
        """Submits any number of jobs and yields their acks in order, as they come.

        Like `enqueue_many`, at flat memory; an ack with an error is yielded like any other. Jobs
        are taken from the iterable only as fast as the mesh stores them.
        """
        bulk = BulkEnqueue(self._session, self._session.namespace(namespace), make_keys)
        return bulk.acks(jobs)

    async def upload(
        self, content: bytes | Path, content_type: str = "", *, namespace: str | None = None
    ) -> Payload:
        """Stores an input by itself. `enqueue` does this for large inputs and paths."""
        space = self._session.namespace(namespace)
        return await self._session.transfer.upload(content, content_type, space)

    # --- query

    def job(self, job_id: str, *, namespace: str | None = None) -> AsyncJobHandle:
        """The handle of a job that was submitted before. Asks nobody."""
        return AsyncJobHandle(self._session, job_id, self._session.namespace(namespace))

    async def get(self, job_id: str, *, full: bool = False, namespace: str | None = None) -> Job:
        """One job; `full` adds its attempts, and the bytes of input and output."""
        return await self.job(job_id, namespace=namespace).get(full=full)

    async def pages(
        self,
        *,
        states: Iterable[JobState | str] = (),
        types: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        schedule: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        namespace: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[JobPage]:
        """Jobs, newest first, page by page."""
        request = pb.ListJobsRequest(
            namespace=self._session.namespace(namespace),
            filter=to_filter(states, types, labels, schedule, since, until),
            page_size=page_size,
        )
        while True:
            page = await self._session.call(self.stub.ListJobs, request)
            yield JobPage([to_job(message) for message in page.jobs], list(page.missing_shards))
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def list(
        self,
        *,
        states: Iterable[JobState | str] = (),
        types: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        schedule: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        namespace: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        """Jobs, newest first. Shards that are away are left out, with a warning in the log."""
        left = limit
        async for page in self.pages(
            states=states,
            types=types,
            labels=labels,
            schedule=schedule,
            since=since,
            until=until,
            namespace=namespace,
            page_size=min(PAGE_SIZE, limit or PAGE_SIZE),
        ):
            if page.missing_shards:
                log.warning("jobs of shards that are away are missing: %s", page.missing_shards)
            for job in page.jobs if left is None else page.jobs[:left]:
                yield job
            if left is not None and (left := left - len(page.jobs)) <= 0:
                return

    async def download(self, job_id: str, target: Path, *, namespace: str | None = None) -> str:
        """Writes the output of a succeeded job into a file; returns its media type."""
        return await self.job(job_id, namespace=namespace).download(target)

    # --- change and follow

    async def cancel(self, job_id: str, *, reason: str = "", namespace: str | None = None) -> bool:
        """Cancels a job. False: it had ended before."""
        return await self.job(job_id, namespace=namespace).cancel(reason)

    async def watch(
        self,
        *job_ids: str,
        filter: JobFilter | None = None,
        namespace: str | None = None,
        patience: float = PATIENCE_SECONDS,
        progress: bool = False,
        ends_only: bool = False,
    ) -> AsyncIterator[JobEvent]:
        """The state of jobs as it is, then every transition; with `ends_only` (and ids) nothing but
        how each of them ended, which is much cheaper.

        With ids it ends when all have ended; with a filter (`convert.to_filter`) never by itself.
        With `progress` (and ids), what handlers say in between too: events of reason "PROGRESS".
        It resumes after lost connections by itself, for up to `patience` seconds without an answer.
        """
        request = pb.WatchJobsRequest(
            namespace=self._session.namespace(namespace),
            job_ids=job_ids,
            filter=filter,
            progress=progress,
            ends_only=ends_only,
        )
        watch = Watch(self._session.caller, self.stub, request, patience=patience)
        async for response in watch.responses():
            yield to_event(response)
