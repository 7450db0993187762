"""Tells an Orchestrator what became of the attempts of one identity, until it has heard all of it.

Reports go out as they come, as many in one message as there are. While the last message has no
answer yet they gather for a moment: a message costs three processes more than a report does. Each
stays *open* until its verdict: a stream that breaks, or owes an answer for long, is opened again,
to any replica, and everything open is said once more; the row recognises what it knows by its
fence. So nothing is lost while the worker lives, and what is open is bounded by the worker's book,
which takes no more work when too much is unsettled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from services.mesh.errors import DependencyUnavailable, MeshError
from services.mesh.runtime import Backoff
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import (
    Answer,
    Checkpointed,
    Failed,
    Progressed,
    Report,
    Succeeded,
    Verdict,
    refused,
)
from services.worker.ports import Orchestrators, ReportStream

log = logging.getLogger(__name__)

#: The contract's bound on reports in a message, and ours on the outputs in it.
MAX_REPORTS = 1000
MAX_BYTES = 2 * 1024 * 1024
#: A stream that held for so long was not refused: the next one may be opened soon.
STEADY_SECONDS = 5.0
#: How long, in seconds, reports gather while an answer is on its way, and how many need not.
GATHER_SECONDS = 0.015
ENOUGH = 100
#: How often, in seconds, the stream is held against what it still owes: longer than an Orchestrator
#: takes to answer anything, if only by RETRY. One that has more to do than it can is not helped by
#: hearing all of it again, so each time it takes twice as long, up to the most.
ANSWER_SECONDS, MOST_ANSWER_SECONDS = 10.0, 300.0
RECONNECT = Backoff(first=0.05, ceiling=2.0)
RETRY = Backoff(first=0.2, ceiling=2.0)


class Listener(Protocol):
    """Who wants to know what the row said."""

    def judged(self, report: Report, verdict: Verdict) -> None:
        """The attempt's ending has its final verdict."""
        ...

    def stale(self, attempt: Attempt) -> None:
        """The row moved on without an attempt that is still running."""
        ...

    def connected(self, up: bool, why: str = "") -> None: ...


class Reporter:
    """One stream of reports, for as long as the identity has something to say."""

    def __init__(self, worker_id: str, orchestrators: Orchestrators, listener: Listener) -> None:
        self._worker_id = worker_id
        self._orchestrators = orchestrators
        self._listener = listener
        #: What has no final verdict yet, in the order it was added.
        self._open: dict[Report, None] = {}
        #: What the present stream has still to be told.
        self._outbox: deque[Report] = deque()
        #: What the present stream was told and has not answered: of each attempt, by job and fence,
        #: the first, and what was told of it after that.
        self._told: dict[tuple[bytes, int], Report] = {}
        self._told_next: dict[tuple[bytes, int], deque[Report]] = {}
        self._progress: dict[Attempt, Report] = {}
        self._again: list[Report] = []
        self._again_timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        #: Nothing was told on the present stream that has no answer yet, or it is some time ago.
        self._may_send = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        #: How many streams in a row were given up for what they owed.
        self._given_up = 0

    # --- what is to be told

    def add(self, report: Report) -> None:
        self._open[report] = None
        self._outbox.append(report)
        self._idle.clear()
        self._wake.set()

    def add_progress(self, attempt: Attempt, progress: Progressed) -> None:
        """Of an attempt's progress only the newest is worth telling."""
        waiting = self._progress.get(attempt)
        if waiting is not None:
            waiting.what = progress
            return
        report = Report(attempt, progress)
        self._progress[attempt] = report
        self.add(report)

    @property
    def unanswered(self) -> int:
        return len(self._open)

    async def idle(self) -> None:
        """Return when every report has its final verdict."""
        await self._idle.wait()

    # --- the stream

    async def run(self) -> None:
        """Hold a stream for ever; breaks are repaired here."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                began = loop.time()
                why = await self._converse()
                failures = 1 if loop.time() - began > STEADY_SECONDS else failures + 1
                self._listener.connected(False, why)
                await asyncio.sleep(RECONNECT.delay(failures))
        finally:
            self._cancel_again()
            if self._gathering is not None:
                self._gathering.cancel()

    async def _converse(self) -> str:
        """One stream, from its opening to its end; says why it ended."""
        try:
            async with self._orchestrators.open(self._worker_id) as stream:
                self._start_over()
                self._listener.connected(True)
                await self._send_and_hear(stream)
        except MeshError as error:
            return str(error)
        return "the server ended the stream"

    async def _send_and_hear(self, stream: ReportStream) -> None:
        sending = asyncio.create_task(self._send(stream), name="report-sender")
        hearing = asyncio.create_task(self._hear(stream), name="report-hearer")
        missing = asyncio.create_task(self._miss(), name="report-missing")
        tasks = sending, hearing, missing
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(*tasks)

    def _start_over(self) -> None:
        """On a new stream everything open is told again."""
        self._cancel_again()
        self._told, self._told_next = {}, {}
        self._may_send.set()
        self._drop_overtaken()
        self._outbox = deque(self._open)
        self._wake.set()

    def _drop_overtaken(self) -> None:
        """Of an attempt that ended, the start and the progress need not be told again; nor, of one
        that goes on, any progress but the newest.
        """
        ended = {report.attempt for report in self._open if report.is_ending}
        progress = [report for report in self._open if isinstance(report.what, Progressed)]
        newest = {report.attempt: report for report in progress}
        overtaken = [r for r in progress if newest[r.attempt] is not r and r.attempt not in ended]
        for report in overtaken:
            self._close(report)
        for report in [r for r in self._open if r.is_news and r.attempt in ended]:
            self._close(report)
            self._progress.pop(report.attempt, None)

    async def _send(self, stream: ReportStream) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                if len(self._outbox) < ENOUGH:
                    await self._may_send.wait()
                await self._send_batch(stream)

    async def _send_batch(self, stream: ReportStream) -> None:
        self._may_send.clear()
        if self._gathering is not None:
            self._gathering.cancel()
        loop = asyncio.get_running_loop()
        self._gathering = loop.call_later(GATHER_SECONDS, self._may_send.set)
        await stream.send(self._next_batch())

    def _next_batch(self) -> list[Report]:
        batch: list[Report] = []
        size = 0
        while self._outbox and len(batch) < MAX_REPORTS:
            report = self._outbox[0]
            size += _size(report)
            if batch and size > MAX_BYTES:
                break
            batch.append(self._outbox.popleft())
            if self._progress and self._progress.get(report.attempt) is report:
                del self._progress[report.attempt]
        for report in batch:
            dispatch = report.attempt.key, report.attempt.fence
            if self._told.setdefault(dispatch, report) is not report:
                self._told_next.setdefault(dispatch, deque()).append(report)
        return batch

    # --- verdicts

    async def _miss(self) -> None:
        """Give the stream up when it owes one answer for too long: what was told, or its verdict,
        got lost on the way, and nobody else would ever ask.
        """
        owed: tuple[Report, int] | None = None
        while True:
            patience = ANSWER_SECONDS * 2 ** min(self._given_up, 10)
            await asyncio.sleep(min(patience, MOST_ANSWER_SECONDS))
            oldest = next(iter(self._told.values()), None)
            # One that is told again after RETRY is owed anew.
            before, owed = owed, None if oldest is None else (oldest, oldest.tries)
            if owed is not None and owed == before:
                self._given_up += 1
                raise DependencyUnavailable("orchestrator", "a report was not answered")

    async def _hear(self, stream: ReportStream) -> None:
        async for answers in stream.answers():
            self._may_send.set()
            self._judge(answers)
            if not self._told:
                self._given_up = 0  # it has answered all that it owed

    def _judge(self, answers: Sequence[Answer]) -> None:
        for verdict, dispatches in answers:
            for dispatch in dispatches:
                report = self._told_first(dispatch)
                if report is not None and report in self._open:
                    self._judge_one(report, verdict)
        if self._again and self._again_timer is None:
            self._arm_again()

    def _judge_one(self, report: Report, verdict: Verdict) -> None:
        if verdict is Verdict.RETRY:
            report.tries += 1
            self._again.append(report)
        elif verdict is Verdict.INVALID and report.is_ending and not report.refused:
            self._tell_refused(report)
        else:
            self._final(report, verdict)

    def _tell_refused(self, report: Report) -> None:
        """An ending that cannot be stored must not leave its job running for ever."""
        extra = {"action": "report_refused", "job_id": str(report.attempt.job_id)}
        log.error("the ending was refused as invalid: %r", report.what, extra=extra)
        report.what, report.refused = refused(), True
        self._outbox.append(report)
        self._wake.set()

    def _told_first(self, dispatch: tuple[bytes, int]) -> Report | None:
        """The report that is answered: those about one attempt are answered in order."""
        report = self._told.pop(dispatch, None)
        if self._told_next and (others := self._told_next.get(dispatch)) is not None:
            self._told[dispatch] = others.popleft()
            if not others:
                del self._told_next[dispatch]
        return report

    def _final(self, report: Report, verdict: Verdict) -> None:
        self._close(report)
        if report.on_verdict is not None:
            report.on_verdict(verdict)
        if report.is_ending:
            self._listener.judged(report, verdict)
        elif verdict is Verdict.STALE:
            self._listener.stale(report.attempt)
        elif self._again and verdict is Verdict.COMMITTED and report.is_checkpoint:
            self._outdo(report.attempt)

    def _outdo(self, attempt: Attempt) -> None:
        """A checkpoint is stored: those before it, which were to be told again, are of no use."""
        older = [r for r in self._again if r.is_checkpoint and r.attempt is attempt]
        self._again = [report for report in self._again if report not in older]
        for report in older:
            self._final(report, Verdict.COMMITTED)

    def _close(self, report: Report) -> None:
        del self._open[report]
        if not self._open:
            self._idle.set()

    def _arm_again(self) -> None:
        tries = max(report.tries for report in self._again)
        loop = asyncio.get_running_loop()
        self._again_timer = loop.call_later(RETRY.delay(tries), self._tell_again)

    def _tell_again(self) -> None:
        self._again_timer = None
        self._drop_overtaken()
        again = [report for report in self._again if report in self._open]
        outdone = self._outdone(again)
        self._again = [report for report in again if report in outdone]
        # In front: what was to be told of an attempt first should stay so.
        self._outbox.extendleft(report for report in reversed(again) if report not in outdone)
        self._wake.set()
        if self._again:
            self._arm_again()

    def _outdone(self, again: Sequence[Report]) -> set[Report]:
        """Checkpoints while a newer one of their attempt has no verdict: told now, they could take
        its place.
        """
        older = [report for report in again if report.is_checkpoint]
        if not older:
            return set()
        newest = {report.attempt: report for report in self._open if report.is_checkpoint}
        return {report for report in older if newest[report.attempt] is not report}

    def _cancel_again(self) -> None:
        self._again = []
        if self._again_timer is not None:
            self._again_timer.cancel()
            self._again_timer = None


def _size(report: Report) -> int:
    """About as many bytes as it has on the wire."""
    what = report.what
    if isinstance(what, Succeeded):
        return len(what.output.data or b"") + 200
    if isinstance(what, Failed):
        return len(what.failure.message) + len(what.failure.traceback) + 400
    if isinstance(what, Checkpointed):
        return len(what.state.data or b"") + 200
    return 200


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, MeshError):
            await task
