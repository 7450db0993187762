"""The contract of everything that starts and stops with the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable


class StartupError(Exception):
    """The process cannot start, for a reason its operator can act on: one line, exit code 1."""


@runtime_checkable
class Component(Protocol):
    """A part of the process with a beginning and an end.

    `start` returns once the part works (it runs its own tasks in the background). `stop` returns
    once the part has fully ended; it may be called twice, and before or without `start`.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@runtime_checkable
class Taker(Protocol):
    """A component that takes in work, and can cease to while it finishes what it has."""

    async def stop_taking(self) -> None: ...


@runtime_checkable
class Finisher(Protocol):
    """A component with work under way that should finish, or be handed back, before the end."""

    async def finish(self, timeout: float) -> None:
        """Return when nothing is under way any more; cancelled shortly after `timeout` seconds."""
        ...


async def _nothing() -> None:
    return None


class Hooks:
    """A component out of two functions, for a client that only has to be opened and closed.

    process.add(Hooks("nats", start=bus.connect, stop=bus.close))
    """

    def __init__(
        self,
        name: str,
        *,
        start: Callable[[], Awaitable[object]] = _nothing,
        stop: Callable[[], Awaitable[object]] = _nothing,
    ) -> None:
        self.name = name
        self._start, self._stop = start, stop
        self._started = False

    async def start(self) -> None:
        # Set first: what fails half way through its start still wants closing.
        self._started = True
        await self._start()

    async def stop(self) -> None:
        if self._started:
            self._started = False
            await self._stop()


def name_of(component: object) -> str:
    """What to call a component in a log line."""
    return str(getattr(component, "name", None) or type(component).__name__)
