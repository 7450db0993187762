"""One attempt under way: what its handler says, and what it is held to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.mesh.jobs.model import Payload
from services.worker.app.limits import Limits
from services.worker.app.voice import Voice
from services.worker.domain.attempt import Attempt, Stop
from services.worker.domain.ending import Checkpointed, Ending, Progressed, Report, Verdict
from services.worker.ports import Observer, RunSpan

if TYPE_CHECKING:
    from services.worker.app.runner import Runner


class CheckpointRefused(Exception):  # noqa: N818 - says what happened
    """The mesh could not store a checkpoint, though the attempt goes on."""


class Keeper(Protocol):
    """The identity that an attempt was dispatched to."""

    @property
    def may_start(self) -> bool:
        """Whether its lease is to be trusted now."""
        ...

    def tell(self, report: Report) -> None: ...

    def tell_progress(self, attempt: Attempt, progress: Progressed) -> None: ...

    def ended(self, attempt: Attempt, ending: Ending | None, traceparent: str) -> None:
        """The attempt is over; None: there is nothing to report."""
        ...


@dataclass(slots=True, eq=False)
class Run(Observer):
    """One attempt under way."""

    runner: Runner
    attempt: Attempt
    keeper: Keeper
    timeout: float | None
    task: asyncio.Task[None] | None = None
    span: RunSpan | None = None
    began: float = 0.0
    took: float = 0.0
    timer: asyncio.TimerHandle | None = None
    is_reported: bool = False
    #: What it left behind may still speak, and is not heard.
    is_over: bool = False
    #: Both are None for most attempts, which then cost nothing more.
    limits: Limits | None = None
    spoken: Voice | None = None

    @property
    def may_start(self) -> bool:
        return self.keeper.may_start

    def started(self, pid: int = 0) -> None:
        self.runner.begin(self, pid)

    # --- what it is held to

    def hold_to_limits(self, waited: float) -> None:
        """The handler begins; it waited so long since its attempt was taken up."""
        left = self.attempt.total_left
        self.limits = Limits(
            self.stop,
            run=self.timeout,
            silence=self.attempt.progress_timeout,
            total_left=None if left is None else left - waited,
        )

    def stop(self, why: Stop) -> None:
        self.runner.stop(self.attempt, why)

    def limit(self, stop: Stop) -> float | None:
        """The bound that it was stopped for, in seconds."""
        return None if self.limits is None else self.limits.seconds(stop)

    def handler_ended(self) -> None:
        if self.limits is not None:
            self.limits.end()
        if self.spoken is not None:
            self.spoken.speak_out()

    # --- what it says

    @property
    def voice(self) -> Voice:
        """For those who listen, too: made if it has said nothing yet."""
        if self.spoken is None:
            self.spoken = Voice(self._tell_progress, self.runner.log_bytes)
        return self.spoken

    def fall_silent(self) -> None:
        """All is said and kept: those who listen may go."""
        if self.limits is not None:
            self.limits.end()
        if self.spoken is not None:
            self.spoken.end()

    def progressed(self, done: float, total: float, message: str) -> None:
        if self.is_over:
            return
        self.alive()
        self.voice.progressed(Progressed(done, total, message, self.runner.now_us()))

    def alive(self) -> None:
        if self.limits is not None:
            self.limits.sign()

    def extended(self, seconds: float) -> None:
        if self.limits is not None:
            self.limits.extend(seconds)

    def logged(self, text: str, time_us: int = 0) -> None:
        if self.is_over:
            return
        voice = self.voice
        if voice.logged(text, time_us or self.runner.now_us()):
            self.runner.logs.spoke(self.attempt, voice.log)

    async def checkpointed(self, state: Payload) -> bool:
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

        def judged(what: Verdict) -> None:
            if not verdict.done():
                verdict.set_result(what)

        self._waits(True)
        try:
            self.keeper.tell(Report(self.attempt, Checkpointed(state), on_verdict=judged))
            given = await verdict
        finally:
            self._waits(False)
        if given is Verdict.INVALID:
            raise CheckpointRefused("the mesh could not store the checkpoint")
        return given is Verdict.COMMITTED

    def _waits(self, begins: bool) -> None:
        if self.limits is not None:
            self.limits.wait(begins)

    def _tell_progress(self, progress: Progressed) -> None:
        self.keeper.tell_progress(self.attempt, progress)
