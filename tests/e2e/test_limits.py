"""Limits on the whole mesh: three shards, two schedulers, two workers; never more than allowed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from jobmesh import AsyncClient, NewJob
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Worker, WorkerRoom, types_known

APP = "counted_app"
TYPE = "counted"
PLAIN = "counted-plain"


class Journal:
    """What the handlers wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[tuple[int, str, str, str, int]]:
        found = []
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines():
            when, key, sign, job_id, pid = line.split()
            found.append((int(when), key, sign, job_id, int(pid)))
        return sorted(found)

    def most_at_once(self, after: int = 0, but: frozenset[int] = frozenset()) -> Counter[str]:
        """The most that ran at once, in all ("*") and of each key."""
        now: Counter[str] = Counter()
        most: Counter[str] = Counter()
        for when, key, sign, _, pid in self.lines():
            if pid in but:
                continue
            for name in ("*", key):
                now[name] += 1 if sign == "+" else -1
                if when >= after:
                    most[name] = max(most[name], now[name])
        return most

    def ended(self) -> int:
        return sum(line[2] == "-" for line in self.lines())


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture(scope="module")
def workers(calm_room: WorkerRoom) -> Iterator[list[Worker]]:
    """Two for all tests here; the last one kills them."""
    pair = [calm_room.start(app=APP) for _ in range(2)]
    yield pair
    for worker in pair:
        if worker.child.poll() is None:
            worker.stop()


@pytest.fixture
async def limited(mesh: RunningMesh, workers: list[Worker]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(mesh.enqueue_target) as client:
        await eventually(lambda: all(worker.identity() for worker in workers), 2 * PATIENCE)
        await types_known(client, TYPE, PLAIN)
        yield client
        await client.set_type_settings(TYPE, max_running=0, max_running_per_key=0)


def jobs(
    journal: Journal, count: int, seconds: float = 0.01, keys: int = 0, type_: str = TYPE
) -> list[NewJob]:
    return [
        NewJob(
            type_,
            {
                "journal": str(journal.path),
                "seconds": seconds,
                "key": f"k{n % keys}" if keys else "",
            },
            concurrency_key=f"k{n % keys}" if keys else "",
        )
        for n in range(count)
    ]


async def done(journal: Journal, count: int) -> None:
    await eventually(lambda: journal.ended() >= count, 2 * PATIENCE)


async def test_a_limit_of_the_type_is_never_passed(limited, journal):
    await limited.set_type_settings(TYPE, max_running=2)
    began = time.monotonic()
    await limited.enqueue_many(jobs(journal, 200))
    await done(journal, 200)
    took = time.monotonic() - began
    dispatches = [job.message.dispatch_no async for job in limited.list(types=[TYPE])]
    print(f"200 jobs of 10 ms, two at once: {took:.1f} s, {sum(dispatches)} dispatches")
    assert journal.most_at_once()["*"] == 2
    # Each ran once: nobody was sent away for good, nobody twice.
    assert Counter(line[3] for line in journal.lines() if line[2] == "+").total() == 200


async def test_what_is_asked_for_ahead_of_room_waits_for_it(limited, journal):
    # Short ones first, so that the workers ask ahead; then such as take longer than anybody waits.
    quick = await limited.enqueue_many(jobs(journal, 300, seconds=0.001, type_=PLAIN))
    await done(journal, 200)
    slow = await limited.enqueue_many(jobs(journal, 6, seconds=1.5, type_=PLAIN))
    await done(journal, len(quick) + len(slow))
    assert journal.most_at_once()["*"] <= 4, "two workers, two at a time each"
    lines = Counter((job_id, sign) for _, _, sign, job_id, _ in journal.lines())
    assert set(lines.values()) == {1}, "each ran once, to its end"


async def test_a_limit_per_key_is_never_passed_and_keys_do_not_wait_for_each_other(
    limited, journal
):
    await limited.set_type_settings(TYPE, max_running_per_key=1)
    crowd = jobs(journal, 40, seconds=0.05, keys=1)
    others = jobs(journal, 60, keys=7)[1:]
    began = time.monotonic()
    await limited.enqueue_many(crowd + others)
    await done(journal, 99)
    print(f"99 jobs of 7 keys, one at once each: {time.monotonic() - began:.1f} s")
    most = journal.most_at_once()
    assert {most[f"k{n}"] for n in range(7)} == {1}
    # The crowd of one key did not hold up the others.
    order = [line[1] for line in journal.lines() if line[2] == "-"]
    assert order.index("k3") < order.index("k0", 20)


async def test_a_limit_changed_under_load_takes_effect_as_attempts_end(limited, journal):
    await limited.set_type_settings(TYPE, max_running=6)
    await limited.enqueue_many(jobs(journal, 120, seconds=0.05))
    await done(journal, 20)
    await limited.set_type_settings(TYPE, max_running=1)
    # Those that run, and those that were on their way, end first: six of each at most.
    await done(journal, journal.ended() + 12)
    settled = time.monotonic_ns()
    await done(journal, journal.ended() + 5)
    assert journal.most_at_once(after=settled)["*"] == 1
    await limited.set_type_settings(TYPE, max_running=0)
    await done(journal, 120)
    assert journal.most_at_once()["*"] > 6


async def test_the_places_of_a_killed_worker_are_free_again(limited, journal, workers, calm_room):
    await limited.set_type_settings(TYPE, max_running=3)
    await limited.enqueue_many(jobs(journal, 3, seconds=600))
    await eventually(lambda: len(journal.lines()) == 3, PATIENCE)
    await limited.enqueue_many(jobs(journal, 10))
    why = await limited.explain((await limited.enqueue_many(jobs(journal, 1)))[0].id)
    assert why.reason == "LIMIT"
    assert "3 of 3" in why.text
    for worker in workers:
        worker.kill()
    dead = frozenset(worker.pid for worker in workers)
    workers.append(await calm_room.ready(app=APP))
    # The long ones are rescued, and short this time.
    await done(journal, 14)
    assert 0 < journal.most_at_once(but=dead)["*"] <= 3
