"""The handle of one job: what came of it, as it happens or in the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import IO, Any
from uuid import uuid4

from jobmesh.client.convert import to_event, to_job, to_log_line
from jobmesh.client.logs import LogStream
from jobmesh.client.session import Session
from jobmesh.client.watch import Watch
from jobmesh.errors import JobFailed, WaitTimeout
from jobmesh.model import Job, JobEvent, JobState, LogLine
from jobmesh.payloads import decode_output
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2


class AsyncJobHandle:
    """One job, by its id."""

    def __init__(
        self, session: Session, job_id: str, namespace: str, *, existing: bool = False
    ) -> None:
        self._session = session
        self.id = job_id
        self.namespace = namespace
        #: Nothing new was stored: the idempotency key was known, or this job holds the unique key.
        self.existing = existing

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    async def get(self, *, full: bool = False) -> Job:
        """The job as it is now; `full` adds its attempts, and the bytes of input and output."""
        request = pb.GetJobRequest(
            namespace=self.namespace,
            job_id=self.id,
            view=job_pb2.JOB_VIEW_FULL if full else job_pb2.JOB_VIEW_BASIC,
        )
        return to_job((await self._session.call(self._session.stub.GetJob, request)).job)

    async def events(self, *, progress: bool = False) -> AsyncIterator[JobEvent]:
        """The state as it is, then every transition, until the job has ended.

        With `progress`, what the handler says in between too: events with reason "PROGRESS".
        """
        request = pb.WatchJobsRequest(
            namespace=self.namespace, job_ids=[self.id], progress=progress
        )
        watch = Watch(self._session.caller, self._session.stub, request)
        async for response in watch.responses():
            yield to_event(response)

    async def logs(self, *, attempt: int = 0, follow: bool = False) -> AsyncIterator[LogLine]:
        """The lines that the job's handlers logged: of one attempt, or (0) of all.

        With `follow`, also those to come, until the job has ended.
        """
        reader = LogStream(self._session, self.namespace, self.id, attempt, follow=follow)
        async for line in reader.lines():
            yield to_log_line(line)

    async def wait(self, timeout: float | None = None) -> Job:
        """The job in its terminal state, whichever it is; WaitTimeout if that takes too long."""
        try:
            async with asyncio.timeout(timeout):
                await self._ended()
        except TimeoutError:
            raise WaitTimeout(f"job {self.id} did not end within {timeout:g} s") from None
        return await self.get(full=True)

    async def _ended(self) -> None:
        """Return when the job has ended."""
        request = pb.WatchJobsRequest(namespace=self.namespace, job_ids=[self.id], ends_only=True)
        watch = Watch(self._session.caller, self._session.stub, request)
        async for _ in watch.responses():
            pass

    async def result(self, timeout: float | None = None) -> Any:
        """What the handler returned; JobFailed if the job ended in another way.

        JSON comes back as its value, other content as bytes. `download` writes into a file instead.
        """
        job = await self.wait(timeout)
        if job.state is not JobState.SUCCEEDED:
            raise JobFailed(job)
        return await self._output(job)

    async def _output(self, job: Job) -> Any:
        assert isinstance(job.message, job_pb2.Job)
        output = job.message.output
        if output.WhichOneof("content") != "object":
            return decode_output(output.data, output.content_type)
        memory = BytesIO()
        content_type = await self._session.transfer.download(self.id, self.namespace, memory)
        return decode_output(memory.getvalue(), content_type)

    async def read(self) -> bytes:
        """The output of a succeeded job, as it is stored."""
        memory = BytesIO()
        await self._session.transfer.download(self.id, self.namespace, memory)
        return memory.getvalue()

    async def download(self, target: Path) -> str:
        """Writes the output of a succeeded job into a file; returns its media type.

        The file is there when it is complete. A device or a pipe is written to, not replaced.
        """
        file_there = _replaceable(target)
        if file_there is None:
            return await self._copy_into(target)
        part = file_there.with_name(f".{uuid4().hex}.part")
        try:
            with part.open("xb+") as file:
                kind = await self._session.transfer.download(self.id, self.namespace, file)
            os.replace(part, file_there)
        finally:
            part.unlink(missing_ok=True)
        return kind

    async def _copy_into(self, target: Path) -> str:
        with TemporaryFile() as file:
            kind = await self._session.transfer.download(self.id, self.namespace, file)
            file.seek(0)
            await asyncio.to_thread(_copy, file, target)
        return kind

    async def cancel(self, reason: str = "") -> bool:
        """Cancels it. False: it had ended before."""
        request = pb.CancelJobRequest(namespace=self.namespace, job_id=self.id, reason=reason)
        return (await self._session.call(self._session.stub.CancelJob, request)).cancelled


def _replaceable(target: Path) -> Path | None:
    """The file that is to be replaced: what a link points to. None: it is no plain file."""
    return None if target.exists() and not target.is_file() else target.resolve()


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("wb") as file:
        copyfileobj(source, file)
