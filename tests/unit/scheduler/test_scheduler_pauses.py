"""What was written here is not undone by older news that come after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.mesh.lease.memory import MemoryRegistry, MemoryStore
from services.mesh.lease.port import Deleted, Entry, Put, Snapshot
from services.mesh.runtime import Tally, Tasks
from services.scheduler.app.console import Console
from services.scheduler.app.follow import Follower
from tests.unit.scheduler.scheduler_fakes import until

PREFIX = "/p/paused/"


class LateRegistry(MemoryRegistry):
    """Its news are handed out one by one, when the test says so; answers may be kept back."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.let_out = asyncio.Semaphore(0)
        self.taken = Tally()
        self.answers = asyncio.Event()
        self.answers.set()

    async def put(self, *given: Any) -> int:
        revision = await super().put(*given)
        await self.answers.wait()
        return revision

    async def delete(self, *given: Any) -> bool:
        deleted = await super().delete(*given)
        await self.answers.wait()
        return deleted

    async def watch(self, prefix: str) -> AsyncIterator[Any]:  # type: ignore[override]
        async with aclosing(super().watch(prefix)) as events:
            async for event in events:
                if not isinstance(event, Snapshot):
                    await self.let_out.acquire()
                yield event
                self.taken.add()


class Stand:
    """A console and what its scheduler takes for paused."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.registry = LateRegistry(self.store)
        self.tasks = Tasks()
        self.paused: set[str] = set()
        self.pauses = Follower(
            self.registry,
            PREFIX,
            self.tasks,
            came=self.paused.add,
            went=self.paused.discard,
        )
        nobody = cast(Any, SimpleNamespace())
        self.recalled: list[str] = []
        self.console = Console(nobody, nobody, {}, self.registry, self.pauses, self._recall)

    async def _recall(self, type_: str) -> None:
        self.recalled.append(type_)

    async def news(self, count: int = 1) -> None:
        """Take in so much of what happened."""
        for _ in range(count):
            self.registry.let_out.release()
            await self.registry.taken.more(1)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    stand = Stand()
    await stand.pauses.start()
    await until(lambda: stand.pauses.known)
    yield stand
    await stand.tasks.stop()


@pytest.mark.parametrize("seen", [0, 1])
async def test_the_late_news_of_a_resume_do_not_lift_the_next_pause(
    stand: Stand, seen: int
) -> None:
    await stand.console.pause("t", "")
    await stand.news(seen)
    await stand.console.resume("t")
    assert stand.paused == set()
    await stand.console.pause("t", "")
    for _ in range(3 - seen):
        assert stand.paused == {"t"}
        await stand.news()
    assert stand.paused == {"t"}
    await stand.registry.delete(PREFIX + "t")  # by another scheduler
    await stand.news()
    assert stand.paused == set()


async def test_the_late_answer_to_a_pause_does_not_outlive_its_resume(stand: Stand) -> None:
    stand.registry.answers.clear()
    pausing = asyncio.create_task(stand.console.pause("t", ""))
    await stand.news()
    stand.store.delete(PREFIX + "t")  # by another scheduler
    await stand.news()
    stand.registry.answers.set()
    await pausing
    assert stand.paused == set()


async def test_the_late_answer_to_a_resume_does_not_lift_a_newer_pause(stand: Stand) -> None:
    await stand.console.pause("t", "")
    await stand.news()
    stand.registry.answers.clear()
    resuming = asyncio.create_task(stand.console.resume("t"))
    await stand.news()
    stand.store.put(PREFIX + "t", b"", 0)  # by another scheduler
    await stand.news()
    stand.registry.answers.set()
    await resuming
    assert stand.paused == {"t"}


async def test_a_pause_that_was_lifted_here_before_the_watch_told_it_can_be_made_again(
    stand: Stand,
) -> None:
    await stand.console.pause("t", "")
    await stand.console.resume("t")
    async with asyncio.timeout(5):
        await stand.news(2)
    assert stand.paused == set()
    await stand.console.pause("t", "")
    assert stand.paused == {"t"}


class Script:
    """A registry whose watch tells what the test says."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Put | Deleted] = asyncio.Queue()
        self.heard = Tally()

    async def watch(self, prefix: str) -> AsyncIterator[Any]:
        yield Snapshot({})
        while True:
            yield await self._events.get()
            self.heard.add()

    async def tell(self, kind: type[Put | Deleted], revision: int) -> None:
        entry = Entry(PREFIX + "t", b"", revision)
        self._events.put_nowait(Put(entry) if kind is Put else Deleted(entry, revision))
        async with asyncio.timeout(5):
            await self.heard.more(1)


@pytest.fixture
async def script() -> Script:
    return Script()


@pytest.fixture
async def pauses(script: Script) -> AsyncIterator[Follower]:
    tasks = Tasks()
    pauses = Follower(cast(Any, script), PREFIX, tasks)
    await pauses.start()
    await until(lambda: pauses.known)
    yield pauses
    await tasks.stop()


async def test_a_pause_that_the_watch_told_is_lifted_by_an_etcd_that_counts_from_one_again(
    script: Script, pauses: Follower
) -> None:
    await script.tell(Put, 50)
    await script.tell(Deleted, 2)
    assert pauses.names == set()


async def test_a_pause_of_ours_that_the_watch_confirmed_is_lifted_by_whatever_it_tells_next(
    script: Script, pauses: Follower
) -> None:
    pauses.written("t", 50)
    await script.tell(Deleted, 49)
    assert pauses.names == {"t"}, "the news are older than what was written here"
    await script.tell(Put, 50)
    await script.tell(Deleted, 2)
    assert pauses.names == set()


async def test_the_answer_to_a_pause_whose_end_the_watch_has_told_is_too_late(
    script: Script, pauses: Follower
) -> None:
    await script.tell(Deleted, 7)
    pauses.written("t", 5)
    assert pauses.names == set()


async def test_the_answer_to_a_pause_that_the_watch_has_told_keeps_nothing_from_lifting_it(
    script: Script, pauses: Follower
) -> None:
    await script.tell(Put, 50)
    pauses.written("t", 50)
    await script.tell(Deleted, 2)
    assert pauses.names == set()
