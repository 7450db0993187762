"""Those who wait are released in every shard, and an end is forgotten only when all were asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from services.mesh.errors import ShardUnavailable
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Parent
from services.scheduler.app.releasing import Releaser
from tests.unit.scheduler.scheduler_fakes import Bench

NOW = datetime(2026, 6, 1, tzinfo=UTC)
RANDOM = Random(3)


def parent(state: JobState | None = JobState.SUCCEEDED) -> Parent:
    return Parent(new_job_id(1, 1, RANDOM), state)


def freed(due_time: datetime, type_: str = "t") -> JobEvent:
    what = (new_job_id(1, 1, RANDOM), 2, JobState.SCHEDULED, Cause.UNBLOCKED, NOW, 0, 0, None)
    return JobEvent(*what, due_time, None, None, "n", type_)


def releaser(bench: Bench) -> Releaser:
    return Releaser("s0", bench.shards, bench.board, bench.broker, bench.measures)


async def test_an_end_is_told_to_every_shard_and_then_forgotten() -> None:
    async with Bench("s0", "s1") as bench:
        home, other = bench.stores["s0"], bench.stores["s1"]
        ended = parent()
        home.ended, other.waiting = [ended], [freed(NOW)]
        assert await releaser(bench).run_once() == {"released": 1}
        assert home.released == other.released == [ended]
        assert home.forgotten == [ended.job_id]


async def test_an_end_is_kept_while_a_shard_is_away() -> None:
    async with Bench("s0", "s1") as bench:
        home = bench.stores["s0"]
        home.ended = [parent()]
        bench.stores["s1"].away = True
        await releaser(bench).run_once()
        assert home.released
        assert home.forgotten == []


async def test_nothing_is_taken_while_the_home_of_the_ends_is_away() -> None:
    async with Bench("s0", "s1") as bench:
        bench.stores["s0"].away = True
        with pytest.raises(ShardUnavailable):
            await releaser(bench).run_once()


async def test_what_is_not_due_yet_is_told_to_the_keeper_of_its_shard() -> None:
    async with Bench("s0", "s1") as bench:
        home, other = bench.stores["s0"], bench.stores["s1"]
        home.ended = [parent()]
        other.waiting = [freed(NOW), freed(NOW + timedelta(seconds=3), "later")]
        await releaser(bench).run_once()
        assert ("s1", ["later"]) in bench.broker.nudges


async def test_a_broker_that_is_away_does_not_hold_up_a_release() -> None:
    async with Bench("s0") as bench:
        home = bench.stores["s0"]
        home.ended, home.waiting = [parent()], [freed(NOW + timedelta(seconds=3))]
        bench.broker.refuses = True
        assert await releaser(bench).run_once() == {"released": 1}
        assert home.forgotten


async def test_the_parents_of_those_who_wait_for_long_are_looked_at() -> None:
    async with Bench("s0", "s1") as bench:
        home, other = bench.stores["s0"], bench.stores["s1"]
        live, ended, gone = parent(JobState.RUNNING), parent(), parent(None)
        home.unsure = [live.job_id, ended.job_id, gone.job_id]
        other.standing = {one.job_id: one for one in (live, ended)}
        await releaser(bench).check()
        assert home.released == [ended, Parent(gone.job_id, None)]
        assert other.released == []


async def test_a_parent_counts_as_gone_only_if_every_shard_answered() -> None:
    async with Bench("s0", "s1") as bench:
        home = bench.stores["s0"]
        home.unsure = [parent().job_id]
        bench.stores["s1"].away = True
        await releaser(bench).check()
        assert home.released == []
