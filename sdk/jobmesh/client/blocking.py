"""Client: the same without an event loop of one's own.

Each Client owns one daemon thread with one event loop, in which its AsyncClient lives; a method
here hands its twin to that loop and waits. There is no second implementation.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from datetime import datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from jobmesh.client.aio import DEFAULT_NAMESPACE, AsyncClient
from jobmesh.client.blocking_changes import BlockingChanges
from jobmesh.client.blocking_schedules import Schedules
from jobmesh.client.blocking_types import BlockingTypes
from jobmesh.client.caller import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS
from jobmesh.client.handle import AsyncJobHandle
from jobmesh.client.submission import Ack
from jobmesh.handlers import JobFunction
from jobmesh.model import Job, JobEvent, JobState, LogLine
from jobmesh.options import EnqueueOptions, NewJob

if TYPE_CHECKING:
    from jobmesh.v1.job_pb2 import JobFilter

T = TypeVar("T")

#: How long work that other threads wait for may take to end when the client is closed.
STOP_SECONDS = 5.0


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_ignore_poller_noise)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        #: Held to begin work, and to say that no more may begin.
        self._door = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    @property
    def running(self) -> bool:
        return not self._closed and not self._forked

    @property
    def _forked(self) -> bool:
        """Whether this process inherited the loop: it has no thread here."""
        return self._pid != os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for `work`. Interrupted (Ctrl-C), it cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a Client's own thread cannot wait for itself: use an AsyncClient")
        if self._forked:  # nobody would ever do the work; nor does gRPC live through a fork
            work.close()
            raise RuntimeError("this Client was made before a fork: fork first, or spawn instead")
        with self._door:
            if self._closed:
                work.close()
                raise RuntimeError("this Client is closed: use it inside its with block")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._closed:
                raise RuntimeError("this Client was closed by another thread") from None
            raise
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of an async iterator, one at a time."""
        under_way: set[asyncio.Task[Any]] = set()
        try:
            while True:
                try:
                    item = self.run(_next(source, under_way))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if self.running:
                self.run(_close(source, under_way))

    def stop(self) -> None:
        """Ends the loop and the thread, and the waits of other threads. May be called twice."""
        with self._door:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all() -> None:
    """Whoever still waits for something would wait for ever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_SECONDS)


async def _next(source: AsyncIterator[T], under_way: set[asyncio.Task[Any]]) -> T:
    # Not __anext__ itself: what run_coroutine_threadsafe takes must be a coroutine.
    task = asyncio.current_task()
    assert task is not None
    under_way.add(task)
    try:
        return await source.__anext__()
    finally:
        under_way.discard(task)


async def _close(source: AsyncIterator[T], under_way: set[asyncio.Task[Any]]) -> None:
    """Ends the iterator. Who waited for its next item was interrupted: that has to end first."""
    for task in under_way:
        if not task.cancelling():  # a second time, it would cut its end short
            task.cancel()
    if under_way:
        await asyncio.wait(under_way)
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def _ignore_poller_noise(loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
    # With a second event loop in the process, gRPC's poller may wake one for nothing; it logs that.
    if not isinstance(details.get("exception"), BlockingIOError):
        loop.default_exception_handler(details)


class JobHandle:
    """One job, by its id. The blocking twin of AsyncJobHandle."""

    def __init__(self, thread: LoopThread, handle: AsyncJobHandle) -> None:
        self._thread = thread
        self._handle = handle
        self.id = handle.id
        self.namespace = handle.namespace
        #: Nothing new was stored: the idempotency key was known, or this job holds the unique key.
        self.existing = handle.existing

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def get(self, *, full: bool = False) -> Job:
        """The job as it is now; `full` adds its attempts, and the bytes of input and output."""
        return self._thread.run(self._handle.get(full=full))

    def events(self, *, progress: bool = False) -> Iterator[JobEvent]:
        """The state as it is, then every transition, until the job has ended.

        With `progress`, what the handler says in between too: events with reason "PROGRESS".
        """
        return self._thread.iterate(self._handle.events(progress=progress))

    def logs(self, *, attempt: int = 0, follow: bool = False) -> Iterator[LogLine]:
        """The lines that the job's handlers logged: of one attempt, or (0) of all.

        With `follow`, also those to come, until the job has ended.
        """
        return self._thread.iterate(self._handle.logs(attempt=attempt, follow=follow))

    def wait(self, timeout: float | None = None) -> Job:
        """The job in its terminal state, whichever it is; WaitTimeout if that takes too long."""
        return self._thread.run(self._handle.wait(timeout))

    def result(self, timeout: float | None = None) -> Any:
        """What the handler returned; JobFailed if the job ended in another way."""
        return self._thread.run(self._handle.result(timeout))

    def read(self) -> bytes:
        """The output of a succeeded job, as it is stored."""
        return self._thread.run(self._handle.read())

    def download(self, target: Path) -> str:
        """Writes the output of a succeeded job into a file; returns its media type."""
        return self._thread.run(self._handle.download(target))

    def cancel(self, reason: str = "") -> bool:
        """Cancels it. False: it had ended before."""
        return self._thread.run(self._handle.cancel(reason))


class Client(BlockingChanges, BlockingTypes):
    """A connection to the mesh. Use it as a context manager, or close it.

    Takes what AsyncClient takes. Safe to share between threads, not across a fork.
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
        self._client = AsyncClient(
            address,
            namespace=namespace,
            timeout=timeout,
            attempts=attempts,
            credentials=credentials,
        )
        self._thread = LoopThread("jobmesh-client")
        self.schedules = Schedules(self._thread, self._client.schedules)

    @property
    def address(self) -> str:
        return self._client.address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and the thread. May be called twice."""
        if self._thread.running:
            self._thread.run(self._client.close())
            self._thread.stop()

    def enqueue(
        self,
        type: str | JobFunction[..., Any],
        input: Any = None,
        *,
        namespace: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle:
        """Submits a job: when it returns, the job is durable. Options: the fields of NewJob."""
        made = self._client.enqueue(type, input, namespace=namespace, **options)
        return JobHandle(self._thread, self._thread.run(made))

    def enqueue_many(
        self,
        jobs: Iterable[NewJob],
        *,
        namespace: str | None = None,
        raise_errors: bool = True,
        make_keys: bool = True,
    ) -> list[Ack]:
        """Submits any number of jobs in batches; one ack each, in order. See AsyncClient."""
        return self._thread.run(
            self._client.enqueue_many(
                jobs, namespace=namespace, raise_errors=raise_errors, make_keys=make_keys
            )
        )

    def enqueue_stream(
        self, jobs: Iterable[NewJob], *, namespace: str | None = None, make_keys: bool = True
    ) -> Iterator[Ack]:
        """Submits any number of jobs and yields their acks as they come. See AsyncClient."""
        return self._thread.iterate(
            self._client.enqueue_stream(jobs, namespace=namespace, make_keys=make_keys)
        )

    def job(self, job_id: str, *, namespace: str | None = None) -> JobHandle:
        """The handle of a job that was submitted before. Asks nobody."""
        return JobHandle(self._thread, self._client.job(job_id, namespace=namespace))

    def get(self, job_id: str, *, full: bool = False, namespace: str | None = None) -> Job:
        """One job; `full` adds its attempts, and the bytes of input and output."""
        return self._thread.run(self._client.get(job_id, full=full, namespace=namespace))

    def list(
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
    ) -> Iterator[Job]:
        """Jobs, newest first."""
        return self._thread.iterate(
            self._client.list(
                states=states,
                types=types,
                labels=labels,
                schedule=schedule,
                since=since,
                until=until,
                namespace=namespace,
                limit=limit,
            )
        )

    def download(self, job_id: str, target: Path, *, namespace: str | None = None) -> str:
        """Writes the output of a succeeded job into a file; returns its media type."""
        return self._thread.run(self._client.download(job_id, target, namespace=namespace))

    def cancel(self, job_id: str, *, reason: str = "", namespace: str | None = None) -> bool:
        """Cancels a job. False: it had ended before."""
        return self._thread.run(self._client.cancel(job_id, reason=reason, namespace=namespace))

    def watch(
        self,
        *job_ids: str,
        filter: JobFilter | None = None,
        namespace: str | None = None,
        progress: bool = False,
        ends_only: bool = False,
    ) -> Iterator[JobEvent]:
        """The state of jobs as it is, then every transition, until all have ended.

        With a filter (`convert.to_filter`) it never ends by itself. With `progress` (and ids), what
        handlers say in between too. With `ends_only` (and ids), only how each job ended.
        """
        return self._thread.iterate(
            self._client.watch(
                *job_ids,
                filter=filter,
                namespace=namespace,
                progress=progress,
                ends_only=ends_only,
            )
        )


@cache
def shared_client(address: str | None = None) -> Client:
    """The client that `function.enqueue(…)` uses when it is given none: one per process."""
    client = Client(address)
    atexit.register(client.close)
    return client
