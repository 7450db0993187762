"""Lines that handlers log in the worker's own loop, brought to the logs of their attempts.

Whose line it is follows from the context in which it was logged: an attempt has one of its own, and
what it starts (tasks, threads by `asyncio.to_thread`) inherits that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar

from services.worker.ports import Observer

#: Our own lines are not the handler's.
OWN = ("services.", "services")


class AttemptLogs(logging.Handler):
    """A handler of the root logger; `attach` and `detach` are its life."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self._observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
        #: What is logged in this context, and by what is started in it, is this attempt's.
        self.follow: Callable[[Observer], object] = self._observer.set
        self._loop: asyncio.AbstractEventLoop | None = None

    async def attach(self) -> None:
        self._loop = asyncio.get_running_loop()
        logging.getLogger().addHandler(self)

    async def detach(self) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        observer = self._observer.get()
        if observer is None or self._loop is None or record.name.startswith(OWN):
            return
        try:
            text, time_us = self.format(record), round(record.created * 1_000_000)
            if asyncio._get_running_loop() is self._loop:
                observer.logged(text, time_us)
            else:
                self._loop.call_soon_threadsafe(observer.logged, text, time_us)
        except Exception:
            self.handleError(record)
