"""Watchers that write down what they were told, and resume by token on whichever replica answers.

Only what a resume token covers counts as told: what came after the last one comes again. The
journal has one line per step that a token closed; a line with `error` marks a cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc.aio
from jobmesh.client.convert import to_filter
from jobmesh.v1 import enqueue_service_pb2 as pb

from tests.chaos.calls import Ring
from tests.chaos.crew import TYPES
from tests.chaos.history import Journal, now
from tests.chaos.orders import POOLED

TERMINAL = frozenset({4, 5, 6, 7})
_PAUSE_SECONDS = 0.2
#: Longer than heartbeats are apart (the load's meshes send one every two seconds).
SILENCE_SECONDS = 8.0
Told = Callable[[str, int, int], None]


def ignore(job: str, version: int, state: int) -> None:
    """The default for who wants to know."""


class Watcher:
    """One watch over any number of streams; by ids it ends with the jobs, else when cancelled."""

    def __init__(
        self,
        name: str,
        ring: Ring,
        journal: Journal,
        *,
        namespace: str,
        job_ids: Sequence[str] = (),
        on_told: Told = ignore,
    ) -> None:
        self._name = name
        self._ring = ring
        self._journal = journal
        self._on_told = on_told
        self._open = set(job_ids)
        self._request = pb.WatchJobsRequest(namespace=namespace, job_ids=job_ids, batches=True)
        if not job_ids:
            self._request.filter.CopyFrom(to_filter(types=[*TYPES, POOLED]))
        self._by_ids = bool(job_ids)
        self._cut_at: float | None = None
        self.live = asyncio.Event()
        fields = {"namespace": namespace, "jobs": list(job_ids), "at": now()}
        journal.write(watcher=name, opened=True, **fields)

    async def run(self) -> None:
        while self._open or not self._by_ids:
            error = await self._stream()
            if error:
                # One that never was live waits for its jobs' shard, and was not cut.
                self._cut_at = self._cut_at or (now() if self.live.is_set() else None)
                self._journal.write(watcher=self._name, at=now(), error=error)
                self._ring.turn()
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _stream(self) -> str:
        """One stream to its end; what went wrong, if anything did."""
        stream = self._ring.client.stub.WatchJobs(self._request, timeout=1800)
        told: list[tuple[str, int, int]] = []
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    response = await stream.read()
                if not isinstance(response, pb.WatchJobsResponse):  # grpc.aio.EOF
                    return "" if self._by_ids and not self._open else "ended"
                self._note_resumed()
                told += _items(response)
                if response.resume_token:
                    self._request.resume_token = response.resume_token
                    self._note(told)
                    told = []
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            if error.reason in ("RESUME_TOKEN_EXPIRED", "RESUME_TOKEN_INVALID"):
                self._request.resume_token = ""
                return f"token refused: {error.reason}"
            return error.reason or error.status
        except TimeoutError:
            return "silence"
        finally:
            stream.cancel()

    def _note_resumed(self) -> None:
        if self._cut_at is not None:
            self._journal.write(watcher=self._name, at=now(), resumed=self._cut_at)
            self._cut_at = None

    def _note(self, told: list[tuple[str, int, int]]) -> None:
        if not self.live.is_set():
            self.live.set()
            self._journal.write(watcher=self._name, live=True, at=now())
        if not told:
            return
        self._journal.write(watcher=self._name, at=now(), told=told)
        for job, version, state in told:
            self._on_told(job, version, state)
            if state in TERMINAL:
                self._open.discard(job)


def _items(response: pb.WatchJobsResponse) -> list[tuple[str, int, int]]:
    kind = response.WhichOneof("message")
    if kind == "snapshot":
        return [(response.snapshot.id, response.snapshot.version, response.snapshot.state)]
    if kind == "event":
        return [(response.event.job_id, response.event.version, response.event.state)]
    if kind == "batch":
        told = [(one.id, one.version, int(one.state)) for one in response.batch.snapshots]
        return told + [(e.job_id, e.version, int(e.state)) for e in response.batch.events]
    return []
