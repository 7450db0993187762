"""Unique keys in one shard, on a real Postgres, races included."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from services.mesh.jobs.model import JobFilter, Payload, Timeouts
from services.mesh.jobs.reports import Failed, Succeeded
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Dependency, Ties, UniquePolicy
from services.mesh.store.answers import (
    PutOutcome,
    RedriveOutcome,
)
from tests.integration.store_rig import (
    EPOCH,
    Rig,
    new_job,
    opened,
    rig_of_test,  # noqa: F401
)
from tests.integration.ties_rig import (
    BLOCKED,
    DAY,
    KEEP,
    REFUSE,
    REPLACE,
    finish,
    keyed,
    store,
)


async def test_a_key_is_held_until_its_job_ends(rig: Rig) -> None:
    first, second, third = (keyed("k") for _ in range(3))
    (made,) = await store(rig, first)
    (kept,) = await store(rig, second)
    assert (made.outcome, kept.outcome) == (PutOutcome.CREATED, PutOutcome.EXISTING)
    assert kept.job_id == first.id
    await finish(rig, first.id)
    (made,) = await store(rig, third)
    assert (made.outcome, made.job_id) == (PutOutcome.CREATED, third.id)
    assert (await rig.get(third.id)).unique_key == "k"


async def test_every_kind_of_end_frees_the_key(rig: Rig) -> None:
    jobs = [keyed(f"k{n}", timeouts=Timeouts(start=DAY)) for n in range(4)]
    failed, cancelled, expired, late = (job.id for job in jobs)
    await store(rig, *jobs)
    await rig.store.cancel([cancelled])
    taken = {job.id: job for job in await rig.claim(limit=4)}
    await rig.say(Failed(failed, taken[failed].fence, "w1", Failure("E", "")))
    await rig.store.sweep([(i, taken[i].fence) for i in (expired, late)])
    await rig.say(Succeeded(late, taken[late].fence, "w1"))
    rig.pass_time(2 * DAY)
    await rig.store.expire_overdue()
    assert rig.sql("SELECT key FROM unique_keys") == []


async def test_refuse_names_the_holder(rig: Rig) -> None:
    first = keyed("k")
    await store(rig, first)
    (answer,) = await store(rig, keyed("k", REFUSE))
    assert (answer.outcome, answer.job_id) == (PutOutcome.HELD, first.id)


async def test_replace_changes_a_job_that_nobody_had(rig: Rig) -> None:
    first = keyed("k", labels={"a": "1"})
    await store(rig, first)
    newer = keyed(
        "k", REPLACE, input=Payload.inline(b"new"), priority=5, delay=DAY, labels={"b": "2"}
    )
    (answer,) = await store(rig, newer)
    assert (answer.outcome, answer.job_id) == (PutOutcome.REPLACED, first.id)
    record = await rig.get(first.id)
    assert (record.input.data, record.priority, record.labels) == (b"new", 5, {"b": "2"})
    assert record.due_time - record.create_time >= DAY
    assert await rig.claim() == []
    assert await rig.causes(first.id) == [Cause.CREATED, Cause.UPDATED]
    for name, found in (("a", 0), ("b", 1)):
        value = "1" if name == "a" else "2"
        jobs = JobFilter(namespace="n", labels={name: value})
        assert len(await rig.store.list_jobs(jobs, None, 10)) == found


async def test_replace_changes_a_blocked_job_and_it_stays_blocked(rig: Rig) -> None:
    (parent,) = await rig.put()
    now = (await rig.store.probe()).now
    waits = (Dependency(parent),)
    first = new_job(ties=Ties(waits, waits, "k"))
    await store(rig, first)
    (answer,) = await store(
        rig, keyed("k", REPLACE, input=Payload.inline(b"new"), expire_time=now + DAY)
    )
    assert (answer.outcome, answer.state) == (PutOutcome.REPLACED, BLOCKED)
    assert (await rig.get(first.id)).input.data == b"new"
    assert rig.sql("SELECT expire_time FROM blocked") == [(now + DAY,)]


async def test_replace_keeps_what_has_started_or_is_of_another_type(rig: Rig) -> None:
    first = keyed("k")
    await store(rig, first)
    (other,) = await store(rig, keyed("k", REPLACE, type="other"))
    await rig.claim()
    (started,) = await store(rig, keyed("k", REPLACE, input=Payload.inline(b"new")))
    assert {other.outcome, started.outcome} == {PutOutcome.EXISTING}
    assert (await rig.get(first.id)).input.data == b"in"


@pytest.mark.parametrize("policy", [KEEP, REPLACE, REFUSE])
async def test_the_policy_is_kept_with_the_job_and_with_its_repetition(
    rig: Rig, policy: UniquePolicy
) -> None:
    job = keyed("k", policy)
    await store(rig, job)
    assert (await rig.get(job.id)).unique_policy is policy
    await finish(rig, job.id, fails=True)
    wish = new_job().id
    await rig.store.redrive({job.id: wish}, "n", EPOCH, None)
    again = await rig.get(wish)
    assert (again.unique_key, again.unique_policy) == ("k", policy)


async def test_a_job_without_a_key_has_no_policy(rig: Rig) -> None:
    (job_id,) = await rig.put(1)
    assert (await rig.get(job_id)).unique_policy is None


async def test_a_replaced_job_is_bound_by_the_new_concurrency_key(rig: Rig) -> None:
    first = keyed("k", concurrency_key="old")
    second = keyed("k", REPLACE, concurrency_key="new")
    await store(rig, first)
    await store(rig, second)
    job = await rig.get(first.id)
    assert (job.concurrency_key, job.unique_policy) == ("new", REPLACE)
    (other,) = await store(rig, keyed("other", concurrency_key="new"))
    keys = rig.sql("SELECT DISTINCT limit_key FROM queue")
    assert (len(keys), other.outcome) == (1, PutOutcome.CREATED)


async def test_one_batch_may_name_a_key_twice(rig: Rig) -> None:
    first, second = keyed("k"), keyed("k")
    answers = await store(rig, first, second)
    assert sorted(answer.outcome.value for answer in answers) == ["created", "existing"]
    assert len({answer.job_id for answer in answers}) == 1


async def test_an_idempotency_key_goes_before_the_unique_key(rig: Rig) -> None:
    first = keyed("k", idempotency_key="i", request_hash=b"h")
    await store(rig, first)
    await finish(rig, first.id)
    (again,) = await store(rig, keyed("k", idempotency_key="i", request_hash=b"h"))
    (other,) = await store(rig, keyed("k", idempotency_key="i", request_hash=b"x"))
    assert (again.outcome, again.job_id) == (PutOutcome.EXISTING, first.id)
    assert other.outcome is PutOutcome.CONFLICT
    assert rig.sql("SELECT key FROM unique_keys") == []


async def test_keys_of_namespaces_are_apart(rig: Rig) -> None:
    answers = await store(rig, keyed("k"), keyed("k", namespace="m"))
    assert {answer.outcome for answer in answers} == {PutOutcome.CREATED}


async def test_a_key_that_nobody_gave_back_is_free(rig: Rig) -> None:
    (ended,) = await rig.put()
    await rig.store.cancel([ended])
    for holder in (ended, new_job().id):
        rig.sql("INSERT INTO unique_keys (namespace, key, job_id) VALUES ('n', 'k', %s)", holder)
        job = keyed("k")
        (made,) = await store(rig, job)
        assert made.outcome is PutOutcome.CREATED
        await rig.store.cancel([job.id])


async def test_of_racing_submitters_one_wins(rig: Rig) -> None:
    async with opened(rig.dsn, max_connections=8) as other:
        for n in range(5):
            jobs = [keyed(f"k{n}") for _ in range(12)]
            stores = (rig.store, other)
            answers = await asyncio.gather(
                *(stores[at % 2].put_tied_jobs([job], EPOCH) for at, job in enumerate(jobs))
            )
            results = [answer.results[0] for answer in answers]
            assert sum(r.outcome is PutOutcome.CREATED for r in results) == 1
            assert len({r.job_id for r in results}) == 1


async def test_racing_completion_never_leaves_two_live_or_a_lost_submission(rig: Rig) -> None:
    """Submitters and finishers of one key at once: the auditor and these counts find a double."""
    done: list[UUID] = []

    async def submit() -> int:
        (result,) = await store(rig, keyed("k"))
        return int(result.outcome is PutOutcome.CREATED)

    async def finish_one() -> int:
        for job in await rig.claim():
            await rig.say(Succeeded(job.id, job.fence, "w1"))
            done.append(job.id)
        live = rig.store.count_jobs(JobFilter(namespace="n"))
        counts = await live
        assert sum(n for state, n in counts.items() if state is not JobState.SUCCEEDED) <= 1
        return 0

    for _ in range(10):
        await asyncio.gather(*(submit() if n % 2 else finish_one() for n in range(8)))
    assert len(done) > 1


async def test_a_redriven_job_takes_its_key_or_is_refused(rig: Rig) -> None:
    first = keyed("k")
    await store(rig, first)
    await rig.store.cancel([first.id])
    newer = keyed("k")
    await store(rig, newer)
    refused = (await rig.store.redrive({first.id: new_job().id}, "n", EPOCH)).results[0]
    assert (refused.outcome, refused.redrive_id) == (RedriveOutcome.HELD, newer.id)
    await rig.store.cancel([newer.id])
    wishes = {first.id: new_job().id, newer.id: new_job().id}
    answer = await rig.store.redrive(wishes, "n", EPOCH)
    assert sorted(r.outcome.value for r in answer.results) == ["created", "held"]
    (made,) = [r for r in answer.results if r.outcome is RedriveOutcome.CREATED]
    assert rig.sql("SELECT job_id FROM unique_keys") == [(made.redrive_id,)]


async def test_racing_redrives_of_a_keyed_job_make_one(rig: Rig) -> None:
    job = keyed("k")
    await store(rig, job)
    await rig.store.cancel([job.id])
    answers = await asyncio.gather(
        *(rig.store.redrive({job.id: new_job().id}, "n", EPOCH) for _ in range(6))
    )
    outcomes = [answer.results[0].outcome for answer in answers]
    assert outcomes.count(RedriveOutcome.CREATED) == 1
    assert len({answer.results[0].redrive_id for answer in answers}) == 1
