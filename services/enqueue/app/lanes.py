"""Namespaces whose jobs are stored apart from those of others: each in a lane of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from services.enqueue.app.coalescing import Coalescer
from services.mesh.runtime import Tasks

T = TypeVar("T")
R = TypeVar("R")

Send = Callable[[str, Sequence[T]], Awaitable[Sequence[R]]]


class Pace(Protocol):
    """How fast a namespace is stored."""

    def is_spent(self, namespace: str) -> bool:
        """Whether it has sent more than its rate lately."""

    def pause(self, namespace: str) -> float:
        """Seconds until its next put; 0: it may go."""

    def went(self, namespace: str) -> None:
        """A put of it is on its way."""


class Lanes(Generic[T, R]):
    """A coalescer for each namespace that has something under way, at that one's pace."""

    def __init__(
        self,
        send: Send[T, R],
        tasks: Tasks,
        pace: Pace,
        *,
        size: Callable[[T], int],
        jobs: Callable[[T], int] | None = None,
    ) -> None:
        self._send, self._tasks, self._pace = send, tasks, pace
        self._size, self._jobs = size, jobs
        self._lanes: dict[str, Coalescer[T, R]] = {}

    def __len__(self) -> int:
        """Namespaces that have something under way."""
        return len(self._lanes)

    async def submit(self, namespace: str, item: T) -> R:
        """The result for this item."""
        lane = self._lanes.get(namespace)
        if lane is None:
            lane = self._lanes[namespace] = self._open(namespace)
        return await lane.submit(item)

    def _open(self, namespace: str) -> Coalescer[T, R]:
        return Coalescer(
            partial(self._send, namespace),
            self._tasks,
            size=self._size,
            jobs=self._jobs,
            pause=partial(self._pace.pause, namespace),
            on_begin=partial(self._pace.went, namespace),
            on_idle=partial(self._close, namespace),
        )

    def _close(self, namespace: str) -> None:
        self._lanes.pop(namespace, None)
