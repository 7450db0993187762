"""The log of a job: the lines that were kept of each dispatch, then those of the running one.

A reader holds no lines. What it has given is two numbers, a dispatch and a line in it, so that it
goes on in the kept lines where a worker's stream ended, and a caller goes on where ours did. Live
lines come at the caller's pace: a slow one makes the worker drop lines of its bounded buffer, and
is told how many.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from services.enqueue.app.watch import Kind
from services.enqueue.app.watches import WatchHub
from services.enqueue.ports import LogSource, Tried
from services.mesh.jobs.logs import LogLine
from services.mesh.runtime import DrainSignal

log = logging.getLogger(__name__)

#: Lines given at once.
PART = 500

Lines = tuple[Tried, Sequence[LogLine]]


@dataclass(slots=True)
class Reading:
    """What is read, and how far it was given."""

    namespace: str
    job_id: str
    attempt: int = 0
    """0: all."""
    fence: int = 0
    number: int = 0
    over: bool = False
    """There is nothing more to come."""

    def wants(self, tried: Tried) -> bool:
        return tried.fence >= self.fence and self.attempt in (0, tried.attempt)

    def after(self, tried: Tried) -> int:
        """The number of the last line given of a dispatch."""
        return self.number if tried.fence == self.fence else 0

    def given(self, tried: Tried, number: int) -> None:
        self.fence, self.number = tried.fence, number

    def left(self, tried: Tried) -> None:
        """All of it was given."""
        self.fence, self.number = tried.fence + 1, 0


class LogReader:
    """Reads logs for callers."""

    def __init__(self, source: LogSource, watches: WatchHub, drain: DrainSignal) -> None:
        self._source, self._watches, self._drain = source, watches, drain

    async def read(self, reading: Reading, *, once: bool) -> AsyncGenerator[Lines, None]:
        """All lines so far; without `once`, also those to come, until the job has ended."""
        if once:
            async with aclosing(self._round(reading, once=True)) as parts:
                async for part in parts:
                    yield part
            return
        watch = self._watches.watch(reading.namespace, [reading.job_id], "")
        async with aclosing(watch) as deliveries:
            async for delivery in deliveries:
                if delivery.kind is Kind.DRAIN:
                    return
                async with aclosing(self._round(reading, once=False)) as parts:
                    async for part in parts:
                        yield part
                if reading.over:
                    return

    async def _round(self, reading: Reading, *, once: bool) -> AsyncGenerator[Lines, None]:
        """What there is to be had now; of a running dispatch, all that comes while it runs."""
        tries, ended = await self._source.dispatches(reading.namespace, reading.job_id)
        for tried in [tried for tried in tries if reading.wants(tried)]:
            if tried.ended:
                lines = await self._kept(reading, tried)
                for start in range(0, len(lines), PART):
                    part = lines[start : start + PART]
                    reading.given(tried, part[-1].number)
                    yield tried, part
                reading.left(tried)
                continue
            live = self._source.live(reading.job_id, tried, reading.after(tried), once=once)
            async with aclosing(live) as parts:
                async for part in self._drain.cut(parts):
                    reading.given(tried, part[-1].number)
                    yield tried, part
        later = reading.attempt and any(tried.attempt > reading.attempt for tried in tries)
        reading.over = ended or bool(later)

    async def _kept(self, reading: Reading, tried: Tried) -> Sequence[LogLine]:
        after = reading.after(tried)
        try:
            lines = await self._source.kept(reading.namespace, reading.job_id, tried.fence)
        except ValueError as error:
            extra = {"action": "log_unreadable", "job_id": reading.job_id}
            log.warning("cannot read a kept log: %s", error, extra=extra)
            return ()
        return [line for line in lines if line.number > after]
