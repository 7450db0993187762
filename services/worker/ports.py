"""What the worker needs from others: narrow protocols, filled in `adapters`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.mesh.jobs.logs import LogLine
from services.mesh.jobs.model import ObjectRef, Payload
from services.mesh.lease.port import Lease, Locks, Places
from services.worker.domain.attempt import Attempt, Batch
from services.worker.domain.ending import (
    Answer,
    Ending,
    Failed,
    HandedBack,
    Report,
    Snoozed,
    Succeeded,
    Verdict,
)

# --- executors


@dataclass(frozen=True, slots=True)
class Returned:
    """What a handler returned. `release` is called once the content has been stored."""

    content: bytes | Path
    content_type: str
    release: Callable[[], Awaitable[None]] | None = None


RETURNED_NOTHING = Returned(b"", "")


class Observer(Protocol):
    """Follows one attempt while it runs, and takes what its handler says. Of the worker's loop."""

    @property
    def may_start(self) -> bool:
        """Whether the handler may begin now. It was so when the executor was asked to run it."""
        ...

    def started(self, pid: int = 0) -> None:
        """The handler begins now; in this process, if it has one of its own."""
        ...

    def progressed(self, done: float, total: float, message: str) -> None:
        """How far it is: finite, not negative, the message within the contract's bound.

        May be called as often as one likes; it is a sign of life, too.
        """
        ...

    def alive(self) -> None:
        """A sign of life without news."""
        ...

    def extended(self, seconds: float) -> None:
        """It may run for so long from now; the job's total time still holds."""
        ...

    def logged(self, text: str, time_us: int = 0) -> None:
        """One line, or several, that it logged or printed; now, if no time is given."""
        ...

    async def checkpointed(self, state: Payload) -> bool:
        """Store what a later attempt may go on from; an empty payload removes it.

        Returns when it is durable. False: the row has moved on without this attempt, which is
        being stopped.
        """
        ...


class Executor(Protocol):
    """Runs handlers."""

    #: Whether it has inputs that are objects read by others, and needs no bytes of them.
    reads_objects: bool = False

    def wants_file(self, type_: str) -> bool:
        """Whether an input that is an object should be passed as a file."""
        ...

    async def run(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | Succeeded | Failed | HandedBack | Snoozed:
        """Run the attempt's handler to its end; `attempt.checkpoint` is for it to go on from.

        Failed and Snoozed are the handler's doing, HandedBack says that it could not be begun.
        When cancelled, it returns only after the handler has been stopped.
        """
        ...


# --- the broker


class WorkSource(Protocol):
    """The schedulers, as one worker identity sees them."""

    async def listen_for_calls(self, type_: str) -> None:
        """Hear from now on when a scheduler is short of room for the type."""
        ...

    async def grab(
        self, type_: str, credit: int, grab_no: int, at: str = "", *, waits: bool = True
    ) -> None:
        """Ask any scheduler for work, or the one that called from `at`; raises
        DependencyUnavailable if that cannot be sent. `waits`: jobs may come before their time.
        """
        ...

    async def withdraw(self, type_: str, grab_no: int) -> None:
        """Take a grab back that nobody has answered; raises as `grab`. It may come too late."""
        ...

    async def close(self) -> None: ...


class Inbox(Protocol):
    """What comes from the broker."""

    def received(self, batch: Batch) -> None: ...

    def refused(self, type_: str, grab_no: int) -> None:
        """Nobody heard the grab."""
        ...

    def called(self, type_: str, at: str) -> None:
        """A scheduler has work of the type that nobody with room takes."""
        ...

    def cancelled(self, key: bytes, fence: int) -> None: ...


class Broker(Protocol):
    async def join(self, worker_id: str, inbox: Inbox) -> WorkSource:
        """Listen under this identity."""
        ...


# --- membership


class Standing(Protocol):
    """A worker identity that the mesh can see: registered under a lease of its own."""

    @property
    def worker_id(self) -> str: ...

    @property
    def lease(self) -> Lease: ...

    @property
    def locks(self) -> Locks: ...

    @property
    def places(self) -> Places: ...

    @property
    def trusted_until(self) -> float:
        """End of the lease's trust window, on the monotonic clock."""
        ...

    async def announce(self, *, draining: bool = False) -> None:
        """Write the registration, or write it again."""
        ...

    async def leave(self) -> None:
        """Revoke the lease: registration and locks vanish. May be called twice."""
        ...


class Membership(Protocol):
    async def enter(self) -> Standing:
        """A new identity with a new lease, not announced yet."""
        ...


class Schedulers(Protocol):
    def departures(self) -> AsyncIterator[str]:
        """The ids of schedulers that are gone, as they go. Never ends by itself."""
        ...


# --- reports


class ReportStream(Protocol):
    """An open stream of reports."""

    async def send(self, reports: Sequence[Report]) -> None: ...

    def answers(self) -> AsyncIterator[Sequence[Answer]]:
        """The verdicts as they come; ends when the server ends the stream or asks to."""
        ...


class Orchestrators(Protocol):
    def open(self, worker_id: str) -> AbstractAsyncContextManager[ReportStream]:
        """A stream to any replica; raises Unavailable (or another MeshError) when it breaks."""
        ...


# --- objects


class Objects(Protocol):
    """Inputs and outputs that are too large to travel inline."""

    async def read(self, ref: ObjectRef) -> bytes:
        """The bytes of an input, checked against the reference."""
        ...

    async def download(self, ref: ObjectRef, target: Path) -> None:
        """The same into a file."""
        ...

    async def store(self, attempt: Attempt, content: bytes | Path, content_type: str) -> Payload:
        """Write an output under the attempt's own key, once; a repetition finds it there."""
        ...

    async def input_url(self, ref: ObjectRef, seconds: float) -> str:
        """Where an input can be read by whoever has the URL, for so long."""
        ...

    async def output_url(self, attempt: Attempt, seconds: float) -> str:
        """Where the attempt's output can be written by whoever has the URL, for so long."""
        ...

    async def uploaded(self, attempt: Attempt) -> ObjectRef:
        """What was written there; NotFound if nothing was."""
        ...

    async def keep_log(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        """Write the lines under the attempt's own key."""
        ...

    async def keep_log_so_far(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        """The same while it runs, under another key; it takes the place of the one before."""
        ...

    async def forget_log_so_far(self, attempt: Attempt) -> None:
        """Remove what that wrote."""
        ...


# --- instruments


class RunSpan(Protocol):
    @property
    def traceparent(self) -> str: ...

    def end(self, ending: Ending | None) -> None: ...


class Dependencies(Protocol):
    """Is told whether what the worker needs is there; not ready until all of it is."""

    def lease(self, up: bool, why: str = "") -> None: ...

    def orchestrator(self, up: bool, why: str = "") -> None: ...

    def intake(self, up: bool, why: str = "") -> None: ...


class Instruments(Protocol):
    """Is told what happens, for metrics, traces and Describe."""

    @property
    def finished(self) -> Mapping[str, int]:
        """How many attempts ended here, by outcome."""
        ...

    def run_begins(self, attempt: Attempt) -> RunSpan | None:
        """Its `start_us` is set. None when nothing is traced."""
        ...

    def ended(self, attempt: Attempt, ending: Ending | None, run_seconds: float) -> None: ...

    def verdict(self, attempt: Attempt, verdict: Verdict) -> None: ...

    def lock_conflicts(self, count: int) -> None: ...

    def serves(self, type_: str) -> None:
        """The type is served from now on. May be said again."""
        ...

    def identity_lost(self) -> None: ...
