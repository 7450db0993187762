"""Whether the process can do its work: which of the things it depends on are up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Dependency:
    """One thing the process needs. Down until seen up; whoever talks to it says how it is."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.name = name
        self._up = False
        self._reason = "not reached yet"
        self._changed = changed

    @property
    def is_up(self) -> bool:
        return self._up

    @property
    def reason(self) -> str:
        """Why it is down; empty when it is up."""
        return self._reason

    def up(self) -> None:
        if not self._up:
            self._up, self._reason = True, ""
            extra = {"action": "dependency_up", "dependency": self.name}
            log.info("%s is up", self.name, extra=extra)
            self._changed()

    def down(self, reason: object = "") -> None:
        was, self._up, self._reason = self._up, False, str(reason) or "down"
        if was:
            extra = {"action": "dependency_down", "dependency": self.name, "reason": self._reason}
            log.warning("%s is down", self.name, extra=extra)
            self._changed()


class Readiness:
    """All dependencies of the process, and whether it is on its way out.

    Alive and ready are two things. A process is alive until it drains, whatever happens around it:
    restarting it would not bring Postgres back. It is ready while everything it requires is up, so
    that callers go to a replica that can answer.
    """

    def __init__(self) -> None:
        self._dependencies: dict[str, Dependency] = {}
        self._listeners: list[Callable[[], None]] = []
        self._draining = False
        self._waiters: list[asyncio.Future[None]] = []

    def require(self, name: str) -> Dependency:
        """The dependency of that name, added if it is new. Not ready until it says `up`."""
        if name not in self._dependencies:
            self._dependencies[name] = Dependency(name, self._changed)
            self._changed()
        return self._dependencies[name]

    @property
    def alive(self) -> bool:
        return not self._draining

    @property
    def ready(self) -> bool:
        return not self._draining and all(d.is_up for d in self._dependencies.values())

    def missing(self) -> dict[str, str]:
        """What is down, and why."""
        return {d.name: d.reason for d in self._dependencies.values() if not d.is_up}

    def states(self) -> dict[str, bool]:
        return {d.name: d.is_up for d in self._dependencies.values()}

    def drain(self) -> None:
        """From now on neither alive nor ready."""
        self._draining = True
        self._changed()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call the listener on every change, and once now."""
        self._listeners.append(listener)
        listener()

    async def wait_ready(self, timeout: float) -> None:
        """Return once ready; TimeoutError if that takes too long."""
        async with asyncio.timeout(timeout):
            while not self.ready:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
