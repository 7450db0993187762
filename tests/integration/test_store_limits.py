"""Claims of types with a limit per key: which jobs are taken, and how far a claim looks."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from services.mesh.jobs.limits import limit_key
from services.mesh.jobs.model import Claimed
from services.mesh.jobs.reports import HandedBack
from services.mesh.store import claiming
from tests.integration.store_rig import rig_of_test  # noqa: F401

HOUR = timedelta(hours=1)
A, B = limit_key("n", "a"), limit_key("n", "b")


async def keyed(rig, limit: int = 10, per_key: int = 1, held=None) -> tuple[list[Claimed], bool]:
    answer = await rig.store.claim_keyed("t", "w1", limit, per_key, held or {})
    return answer.jobs, answer.skipped


async def test_of_each_key_only_so_many_are_taken_and_the_oldest_first(rig):
    first = await rig.put(3, concurrency_key="a")
    (other,) = await rig.put(concurrency_key="b")
    (free,) = await rig.put()
    jobs, skipped = await keyed(rig)
    assert {job.id for job in jobs} == {min(first), other, free}
    assert {job.id: job.limit_key for job in jobs} == {min(first): A, other: B, free: None}
    assert skipped
    assert (await rig.get(other)).concurrency_key == "b"


async def test_what_is_held_counts(rig):
    await rig.put(3, concurrency_key="a")
    await rig.put(3, concurrency_key="b")
    jobs, skipped = await keyed(rig, per_key=2, held={A: 1, B: 5})
    assert Counter(job.limit_key for job in jobs) == {A: 1}
    assert skipped


async def test_namespaces_do_not_share_a_key(rig):
    await rig.put(concurrency_key="a")
    await rig.put(concurrency_key="a", namespace="m")
    jobs, skipped = await keyed(rig)
    assert {job.limit_key for job in jobs} == {A, limit_key("m", "a")}
    assert not skipped


async def test_a_claim_that_saw_the_end_says_so(rig):
    await rig.put(2)
    assert await keyed(rig, limit=5) != ([], True)
    assert await keyed(rig) == ([], False)


async def test_priority_goes_first_within_a_key(rig):
    await rig.put(2, concurrency_key="a")
    (urgent,) = await rig.put(concurrency_key="a", priority=5)
    jobs, _ = await keyed(rig)
    assert [job.id for job in jobs] == [urgent]


async def test_a_job_keeps_its_key_when_it_comes_back(rig):
    await rig.put(concurrency_key="a")
    (job,), _ = await keyed(rig)
    await rig.say(HandedBack(job.id, job.fence, "w1"))
    assert rig.sql("SELECT limit_key FROM queue") == [(A,)]
    assert await keyed(rig, held={A: 1}) == ([], True)


async def test_a_crowd_of_a_full_key_does_not_block_those_behind_it(rig, monkeypatch):
    monkeypatch.setattr(claiming, "KEY_WINDOW", 5)
    await rig.put(50, concurrency_key="a", priority=1)
    for number in range(12):
        await rig.put(2, concurrency_key=f"k{number}")
    (free,) = await rig.put()
    found: list[Claimed] = []
    held = Counter({A: 1})
    monkeypatch.setattr(claiming, "KEY_WALKS", 1)
    for _ in range(4):
        # Each look goes on from the key at which the one before stopped.
        answer = await rig.store.claim_keyed("t", "w1", 100, 1, held)
        found += answer.jobs
        held.update(job.limit_key for job in answer.jobs if job.limit_key)
        assert answer.skipped
        assert answer.more
    assert len(found) == 13
    assert free in {job.id for job in found}
    assert set(held.values()) == {1}


async def test_jobs_not_due_and_expired_are_left_alone(rig):
    await rig.put(concurrency_key="a", delay=HOUR)
    assert await keyed(rig) == ([], False)


@pytest.mark.parametrize("key", ["", "ü/\\'\"%s{}", "x" * 200])
async def test_any_key_that_the_contract_allows_is_found(rig, key):
    await rig.put(concurrency_key=key)
    (job,), _ = await keyed(rig)
    assert job.limit_key == limit_key("n", key)
