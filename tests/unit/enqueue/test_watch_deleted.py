"""Watches of jobs that are deleted before their end was told: there is nothing more to hear of."""

from contextlib import aclosing

import pytest

from services.enqueue.app.watches import ROLL_CALL
from services.mesh.errors import JobNotFound
from tests.unit.enqueue.watch_stand import J, K, Stand, news, take


async def test_a_job_that_was_deleted_ends_its_watch_and_no_other():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.add(K)
    async with (
        aclosing(stand.hub.watch("n", [J], "")) as of_one_deleted,
        aclosing(stand.hub.watch("n", [K], "")) as other,
    ):
        await take(of_one_deleted, 1)
        await take(other, 1)
        await stand.reread()
        del stand.rows.events[J]
        await stand.reread(ROLL_CALL * 2)
        with pytest.raises(JobNotFound):
            await news(of_one_deleted)
        stand.rows.add(K, ended=True)
        await stand.reread()
        assert (await news(other)).message == "k v2"


async def test_all_jobs_are_asked_for_by_name_only_now_and_then():
    stand = Stand()
    stand.rows.add(J)
    asked: list[str] = []
    ends = stand.rows.ends

    async def counted(namespace, jobs):
        asked.extend(jobs.values())
        return await ends(namespace, jobs)

    stand.rows.ends = counted
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await take(watch, 1)
        for _ in range(2 * ROLL_CALL):
            await stand.reread(2)
    assert len(asked) == 2
