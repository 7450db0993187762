"""Dependencies and unique keys in one shard, on a real Postgres, races included."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from services.mesh.jobs.model import JobFilter, NewJob, Payload, Timeouts
from services.mesh.jobs.reports import Failed, Succeeded
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Dependency, Parent, ParentFailurePolicy, Ties, UniquePolicy
from services.mesh.store.answers import (
    ChangeOutcome,
    JobChange,
    PutOutcome,
    PutResult,
    RedriveOutcome,
)
from tests.integration.store_rig import EPOCH, Rig, kept, new_job, opened, purge, rig_of_test  # noqa: F401

CANCEL, RUN, FAIL = ParentFailurePolicy.CANCEL, ParentFailurePolicy.RUN, ParentFailurePolicy.FAIL
KEEP, REPLACE, REFUSE = UniquePolicy.KEEP, UniquePolicy.REPLACE, UniquePolicy.REFUSE
BLOCKED, SCHEDULED = JobState.BLOCKED, JobState.SCHEDULED
DAY = timedelta(days=1)


def waiting(*parents: UUID, policy: ParentFailurePolicy = CANCEL, **fields: Any) -> NewJob:
    """A job that waits for these."""
    waits = tuple(Dependency(parent, policy) for parent in parents)
    return new_job(**{"type": "child", "ties": Ties(waits, waits)} | fields)


def keyed(key: str, policy: UniquePolicy = KEEP, **fields: Any) -> NewJob:
    return new_job(ties=Ties(unique_key=key, unique_policy=policy), **fields)


async def store(rig: Rig, *jobs: NewJob) -> list[PutResult]:
    return (await rig.store.put_tied_jobs(jobs, EPOCH)).results


async def await_(rig: Rig, *ids: UUID) -> None:
    await rig.store.await_jobs([("n", job_id) for job_id in ids])


async def child_of(rig: Rig, *parents: UUID, **given: Any) -> UUID:
    """A child as a submitter makes it: the parents are marked first."""
    await await_(rig, *parents)
    child = waiting(*parents, **given)
    (result,) = await store(rig, child)
    assert result.state is BLOCKED
    return child.id


async def release_all(rig: Rig) -> list[JobState]:
    """What a scheduler does, until nothing is left to do; the states that came of it."""
    states: list[JobState] = []
    while parents := await rig.store.take_ended_parents():
        states += [event.state for event in (await rig.store.release(parents)).events]
        await rig.store.forget_ended_parents([parent.job_id for parent in parents])
    return states


async def finish(rig: Rig, job_id: UUID, *, fails: bool = False) -> None:
    jobs = {job.id: job for job in await rig.claim(limit=100)}
    fence = jobs[job_id].fence
    end = Failed(job_id, fence, "w1", Failure("ValueError", "boom"))
    await rig.say(end if fails else Succeeded(job_id, fence, "w1"))


# --- dependencies


async def test_a_child_waits_until_its_parent_succeeded(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    assert await rig.claim(type="child") == []
    await finish(rig, parent)
    assert await release_all(rig) == [SCHEDULED]
    assert [job.id for job in await rig.claim(type="child")] == [child]
    assert await rig.causes(child) == [Cause.CREATED, Cause.UNBLOCKED, Cause.CLAIMED]


async def test_the_end_of_an_awaited_job_is_told_and_that_of_others_is_not(rig: Rig) -> None:
    parent, other = await rig.put(2)
    await child_of(rig, parent)
    jobs = {job.id: job for job in await rig.claim(limit=2)}
    answer = await rig.store.report(
        [Succeeded(job_id, jobs[job_id].fence, "w1") for job_id in (parent, other)]
    )
    assert {event.job_id for event in answer.events if event.awaited} == {parent}
    assert [told.job_id for told in await rig.store.take_ended_parents()] == [parent]


@pytest.mark.parametrize(
    ("policy", "state"),
    [(CANCEL, JobState.CANCELLED), (RUN, SCHEDULED), (FAIL, JobState.FAILED)],
)
async def test_each_policy_decides_after_a_failure(
    rig: Rig, policy: ParentFailurePolicy, state: JobState
) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent, policy=policy)
    await finish(rig, parent, fails=True)
    assert await release_all(rig) == [state]
    record = await rig.get(child)
    if policy is not RUN:
        assert record.failure is not None
        assert record.failure.type == "ParentFailed"
        assert str(parent) in record.failure.message
        assert "FAILED: ValueError: boom" in record.failure.message
        assert (await rig.events(child))[-1].failure == record.failure


async def test_every_kind_of_end_is_told(rig: Rig) -> None:
    cancelled, expired, rescued, swept = await rig.put(4, timeouts=Timeouts(start=DAY))
    for parent in (cancelled, expired, rescued, swept):
        await child_of(rig, parent, policy=FAIL)
    await rig.store.cancel([cancelled])
    jobs = {job.id: job for job in await rig.claim(limit=3)}
    await rig.store.sweep([(swept, jobs[swept].fence), (expired, jobs[expired].fence)])
    late = await rig.say(Succeeded(swept, jobs[swept].fence, "w1"))
    rig.sql("UPDATE jobs SET losses = 3 WHERE id = %s", rescued)
    await rig.store.rescue(["w1"])
    rig.pass_time(2 * DAY)
    await rig.store.expire_overdue()
    parents = await rig.store.take_ended_parents()
    assert {parent.job_id: parent.state for parent in parents} == {
        cancelled: JobState.CANCELLED,
        expired: JobState.EXPIRED,
        rescued: JobState.FAILED,
        swept: JobState.SUCCEEDED,
    }, late


async def test_a_child_of_several_waits_for_all(rig: Rig) -> None:
    parents = await rig.put(3)
    child = await child_of(rig, *parents)
    for parent in parents[:2]:
        await rig.store.release([Parent(parent, JobState.SUCCEEDED)])
        assert (await rig.get(child)).state is BLOCKED
    await rig.store.release([Parent(parents[2], JobState.SUCCEEDED)])
    assert (await rig.get(child)).state is SCHEDULED


async def test_parents_that_end_at_the_same_moment_add_up(rig: Rig) -> None:
    for _ in range(5):
        parents = await rig.put(8)
        child = await child_of(rig, *parents)
        ended = [Parent(parent, JobState.SUCCEEDED) for parent in parents]
        # Twice each: two schedulers may tell of the same end.
        answers = await asyncio.gather(*(rig.store.release([one]) for one in ended * 2))
        events = [event for answer in answers for event in answer.events]
        assert [(event.job_id, event.cause) for event in events] == [(child, Cause.UNBLOCKED)]


async def test_the_first_failure_decides_whatever_the_others_do(rig: Rig) -> None:
    first, second = await rig.put(2)
    child = await child_of(rig, first, second)
    await rig.store.release([Parent(first, JobState.EXPIRED)])
    assert (await rig.get(child)).state is JobState.CANCELLED
    assert (await rig.store.release([Parent(second, JobState.SUCCEEDED)])).events == []


async def test_fail_goes_before_cancel_when_both_are_told_at_once(rig: Rig) -> None:
    first, second = await rig.put(2)
    waits = (Dependency(first, CANCEL), Dependency(second, FAIL))
    child = new_job(ties=Ties(waits, waits))
    await store(rig, child)
    await rig.store.release([Parent(p, JobState.FAILED) for p in (first, second)])
    assert (await rig.get(child.id)).state is JobState.FAILED


async def test_failure_goes_down_to_the_grandchildren(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    grandchild = await child_of(rig, child, policy=FAIL)
    await finish(rig, parent, fails=True)
    assert await release_all(rig) == [JobState.CANCELLED, JobState.FAILED]
    message = (await rig.get(grandchild)).failure
    assert message is not None
    assert f"job {child}, which it waited for, ended CANCELLED" in message.message


async def test_a_parent_that_is_gone_decides_by_the_policy(rig: Rig) -> None:
    gone = new_job().id
    for policy, state in ((CANCEL, JobState.CANCELLED), (RUN, SCHEDULED)):
        child = waiting(gone, policy=policy)
        await store(rig, child)
        await rig.store.release([Parent(gone, None)])
        assert (await rig.get(child.id)).state is state


async def test_a_large_fan_out_is_released_in_parts(rig: Rig) -> None:
    (parent,) = await rig.put()
    await await_(rig, parent)
    await store(rig, *(waiting(parent) for _ in range(25)))
    ended = [Parent(parent, JobState.SUCCEEDED)]
    answers = [await rig.store.release(ended, limit=10) for _ in range(3)]
    assert [(len(a.events), a.more) for a in answers] == [(10, True), (10, True), (5, False)]


async def test_a_child_is_due_at_its_own_time_and_its_start_timeout_begins_then(rig: Rig) -> None:
    (parent,) = await rig.put()
    later = await child_of(rig, parent, delay=DAY)
    now = await child_of(rig, parent, timeouts=Timeouts(start=DAY))
    assert (await rig.get(now)).expire_time is None
    before = await rig.get(later)
    await rig.store.release([Parent(parent, JobState.SUCCEEDED)])
    assert (await rig.get(later)).due_time == before.due_time
    record = await rig.get(now)
    assert record.expire_time == record.due_time + DAY == record.first_due_time + DAY
    assert record.due_time > record.create_time


async def test_the_total_time_of_a_child_begins_when_it_is_released(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent, timeouts=Timeouts(total=DAY))
    rig.pass_time(2 * DAY)
    assert await rig.store.expire_overdue() == []
    await rig.store.release([Parent(parent, JobState.SUCCEEDED)])
    record = await rig.get(child)
    assert rig.sql("SELECT expire_time FROM queue WHERE job_id = %s", child) == [
        (record.first_due_time + DAY,)
    ]


async def test_a_blocked_job_expires_and_tells_those_who_wait_for_it(rig: Rig) -> None:
    (parent,) = await rig.put()
    now = (await rig.store.probe()).now
    child = await child_of(rig, parent, expire_time=now + DAY)
    await child_of(rig, child)
    assert await rig.store.expire_overdue() == []
    rig.pass_time(2 * DAY)
    (event,) = await rig.store.expire_overdue()
    assert (event.job_id, event.cause, event.awaited) == (child, Cause.EXPIRED, True)
    assert await release_all(rig) == [JobState.CANCELLED]


async def test_a_blocked_job_can_be_cancelled_and_changed(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    change = JobChange(priority=7, labels={"a": "b"})
    answer = await rig.store.change(child, "n", change)
    assert (answer.outcome, answer.state) == (ChangeOutcome.CHANGED, BLOCKED)
    assert answer.event is not None
    assert answer.event.due_time is None
    assert (await rig.get(child)).priority == 7
    await rig.store.cancel([child])
    assert await rig.causes(child) == [Cause.CREATED, Cause.UPDATED, Cause.CANCELLED]
    assert (await rig.store.release([Parent(parent, JobState.SUCCEEDED)])).events == []


async def test_blocked_jobs_are_listed_and_counted_and_no_backlog(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    wanted = JobFilter(namespace="n", states=frozenset({BLOCKED}))
    assert [job.id for job in await rig.store.list_jobs(wanted, None, 10)] == [child]
    assert await rig.store.count_jobs(wanted) == {BLOCKED: 1}
    assert [stat.type for stat in await rig.store.backlog()] == ["t"]
    assert (await rig.get(child)).dependencies == (Dependency(parent),)
    assert await rig.store.waits_of(child) == [parent]


async def test_a_mark_needs_the_same_namespace_and_a_live_job(rig: Rig) -> None:
    live, ended = await rig.put(2)
    await rig.store.cancel([ended])
    unknown = new_job().id
    asked = [("n", live), ("n", ended), ("n", unknown), ("other", live)]
    found = await rig.store.await_jobs(asked)
    states = {name: parent.state for name, parent in found.items()}
    assert states == {("n", live): SCHEDULED, ("n", ended): JobState.CANCELLED}
    assert rig.sql("SELECT id FROM jobs WHERE awaited") == [(live,)]


async def test_what_was_told_comes_up_again_until_it_is_forgotten(rig: Rig) -> None:
    (parent,) = await rig.put()
    await child_of(rig, parent)
    await rig.store.cancel([parent])
    hold = timedelta(hours=1)
    assert len(await rig.store.take_ended_parents(hold=hold)) == 1
    assert await rig.store.take_ended_parents() == []
    rig.pass_time(hold)
    assert await release_all(rig) == [JobState.CANCELLED]
    assert rig.sql("SELECT count(*) FROM ended_parents") == [(0,)]


async def test_a_parent_is_not_purged_before_its_children_are_released(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    await rig.store.cancel([parent])
    rig.pass_time(2 * DAY)
    assert await purge(rig.store, kept(timedelta(0))) == 0
    await release_all(rig)
    rig.pass_time(2 * DAY)
    assert await purge(rig.store, kept(timedelta(0))) >= 1
    assert [job.id for job in await rig.store.get_jobs([parent])] == []
    assert child


async def test_parents_of_blocked_jobs_are_looked_at_now_and_then(rig: Rig) -> None:
    (parent,) = await rig.put()
    await child_of(rig, parent)
    assert await rig.store.check_blocked() == []
    rig.pass_time(timedelta(seconds=6))
    assert await rig.store.check_blocked() == [parent]
    assert await rig.store.check_blocked() == []


async def test_a_repeated_put_stores_a_child_once(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = waiting(parent, idempotency_key="k", request_hash=b"h")
    again = waiting(parent, idempotency_key="k", request_hash=b"h")
    first, same = await store(rig, child), await store(rig, child)
    other = await store(rig, again)
    assert [r[0].outcome for r in (first, same, other)] == [
        PutOutcome.CREATED,
        PutOutcome.EXISTING,
        PutOutcome.EXISTING,
    ]
    assert {r[0].job_id for r in (first, same, other)} == {child.id}
    assert await rig.store.waits_of(again.id) == []


async def test_a_redriven_child_does_not_wait(rig: Rig) -> None:
    (parent,) = await rig.put()
    child = await child_of(rig, parent)
    await rig.store.cancel([child])
    new_id = new_job().id
    await rig.store.redrive({child: new_id}, "n", EPOCH)
    assert (await rig.get(new_id)).state is SCHEDULED


# --- unique keys


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
