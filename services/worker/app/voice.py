"""What the handler of one attempt says: its progress and its log, and who listens.

Made when a handler first says something, or somebody first listens; most attempts have none. It
holds a bounded number of bytes: of the progress only the newest, of the log the newest lines. A
listener holds nothing but the number of the last line it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from services.mesh.jobs.logs import LogLine
from services.worker.domain.ending import Progressed
from services.worker.domain.logbook import LogBook

#: Progress is passed on at most this often, and once more at the end.
PROGRESS_SECONDS = 1.0
#: Lines that a listener is given at once.
LINES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class News:
    """What a listener has not heard yet."""

    lines: Sequence[LogLine]
    progress: Progressed | None


class Voice:
    """Passes progress on to `tell` at a bounded rate, keeps the log, wakes those who listen."""

    def __init__(self, tell: Callable[[Progressed], None], log_bytes: int) -> None:
        self.log = LogBook(log_bytes)
        self._tell = tell
        self._progress: Progressed | None = None
        self._told: Progressed | None = None
        self._next_time = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: set[asyncio.Event] = set()
        self._over = False

    def progressed(self, progress: Progressed) -> None:
        """Newer news replaces what was not told yet."""
        self._progress = progress
        if self._timer is None and not self._over:
            loop = asyncio.get_running_loop()
            wait = self._next_time - loop.time()
            if wait <= 0:
                self._pass_on()
            else:
                self._timer = loop.call_later(wait, self._pass_on)

    def logged(self, text: str, time_us: int) -> bool:
        """False: it comes after the end."""
        if not self._over:
            self.log.add(text, time_us)
            self._wake()
        return not self._over

    def speak_out(self) -> None:
        """The handler has ended: tell what was held back."""
        if self._timer is not None:
            self._timer.cancel()
            self._pass_on()

    def end(self) -> None:
        """Nothing more will come."""
        self._over = True
        self._wake()

    async def listen(self, after: int = 0, *, once: bool = False) -> AsyncGenerator[News, None]:
        """What is said after line number `after`, until the end; or only what was said so far."""
        heard: Progressed | None = None
        awake = asyncio.Event()
        self._listeners.add(awake)
        try:
            while True:
                awake.clear()
                while (lines := self.log.after(after, LINES_AT_ONCE)) or self._told is not heard:
                    heard = self._told
                    after = lines[-1].number if lines else after
                    yield News(lines, heard)
                if self._over or once:
                    return
                await awake.wait()
        finally:
            self._listeners.discard(awake)

    def _pass_on(self) -> None:
        self._timer = None
        progress = self._progress
        if progress is not None and progress is not self._told:
            self._told = progress
            self._next_time = asyncio.get_running_loop().time() + PROGRESS_SECONDS
            self._tell(progress)
            self._wake()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.set()
