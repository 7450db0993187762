"""Keeps the logs of running attempts, so that a worker that is killed loses the last seconds only.

The log so far is written as a whole, to an object of its own beside that of the whole log: a write
that is late can never take the place of what is kept at the end. An attempt that ends sooner than
the first write is due costs nothing; a long log is written the less often the longer it is; and one
write at a time is under way, so that a worker whose handlers all talk, or whose store is slow, does
not do more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from services.mesh.jobs.logs import LogLine
from services.worker.domain.attempt import Attempt
from services.worker.domain.logbook import LogBook

#: What the log of one attempt may cost: so many bytes are written per second, on the average.
BYTES_PER_SECOND = 64 * 1024

Keep = Callable[[Attempt, Sequence[LogLine]], Awaitable[None]]


class LogKeeper:
    """Is told of every line; `ended` ends what it does for an attempt."""

    def __init__(self, keep: Keep, seconds: float) -> None:
        self._keep = keep
        #: A line waits this long at least, together with those that come meanwhile; 0: for ever.
        self._seconds = seconds
        self._due: dict[Attempt, tuple[float, LogBook]] = {}
        #: Attempts of which something was written, and when the next may be.
        self._written: dict[Attempt, float] = {}
        self._task: asyncio.Task[None] | None = None

    def spoke(self, attempt: Attempt, log: LogBook) -> None:
        """There is a new line. Cheap: most find that the next write is due already."""
        if attempt in self._due or not self._seconds:
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + self._seconds, self._written.get(attempt, 0.0))
        self._due[attempt] = (due, log)
        if self._task is None:
            self._task = loop.create_task(self._work(), name="log-keeper")

    def ended(self, attempt: Attempt) -> bool:
        """The whole log is kept by others; True if some of it was written here."""
        self._due.pop(attempt, None)
        return self._written.pop(attempt, None) is not None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._due:
            attempt, (due, log) = min(self._due.items(), key=lambda item: item[1][0])
            wait = due - loop.time()
            if wait > 0:
                # What comes meanwhile is due no sooner than after this.
                await asyncio.sleep(min(wait, self._seconds))
                continue
            del self._due[attempt]
            self._written[attempt] = loop.time() + log.size / BYTES_PER_SECOND
            await self._keep(attempt, log.all())
        self._task = None
