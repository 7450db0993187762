"""Dependencies in one shard, on a real Postgres, races included."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from services.mesh.jobs.model import JobFilter, Timeouts
from services.mesh.jobs.reports import Succeeded
from services.mesh.jobs.states import Cause, JobState
from services.mesh.jobs.ties import Dependency, Parent, ParentFailurePolicy, Ties
from services.mesh.store.answers import (
    ChangeOutcome,
    JobChange,
    PutOutcome,
)
from tests.integration.store_rig import (
    EPOCH,
    Rig,
    kept,
    new_job,
    purge,
    rig_of_test,  # noqa: F401
)
from tests.integration.ties_rig import (
    BLOCKED,
    CANCEL,
    DAY,
    FAIL,
    RUN,
    SCHEDULED,
    await_,
    child_of,
    finish,
    release_all,
    store,
    waiting,
)


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
        PutOutcome.CREATED,
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
