"""Repeating jobs that ended, changing jobs that wait, counting, and the place in the queue."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from services.mesh.errors import MeshError, StaleEpoch
from services.mesh.jobs.ids import bucket_of, new_job_id
from services.mesh.jobs.model import JobFilter, ObjectRef, Payload, Timeouts
from services.mesh.jobs.reports import Failed, Succeeded
from services.mesh.jobs.retry import Backoff, Failure, RetryPolicy
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import ChangeOutcome, JobChange, RedriveOutcome
from services.mesh.store.listing import count_query, match_query
from services.mesh.store.settings import StoreSettings, connection_options
from services.mesh.testing.waiting import eventually
from tests.integration.store_rig import (  # noqa: F401
    EPOCH,
    RANDOM,
    audit,
    opened,
    rig_of_test,
    transaction,
)
from tests.integration.test_store_reading import many  # noqa: F401

HOUR = timedelta(hours=1)
CREATED, EXISTING = RedriveOutcome.CREATED, RedriveOutcome.EXISTING
CHANGED = ChangeOutcome.CHANGED


def twin(job_id: UUID) -> UUID:
    return new_job_id(bucket_of(job_id), int(time.time() * 1000), RANDOM)


async def redriven(rig, *ids: UUID, namespace: str = "n"):
    answer = await rig.store.redrive({job_id: twin(job_id) for job_id in ids}, namespace, EPOCH)
    return answer.results


async def failed(rig, **fields) -> UUID:
    job = await rig.claimed(**fields)
    await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "no")))
    return job.id


async def changed(rig, job_id: UUID, **fields) -> ChangeOutcome:
    return (await rig.store.change(job_id, "n", JobChange(**fields))).outcome


# --- redrive


async def test_a_failed_job_is_repeated_by_a_new_one_and_stays_as_it_ended(rig):
    ref = ObjectRef("n/in", 9, b"x" * 32)
    given = {"priority": 4, "labels": {"team": "x"}, "input": Payload.stored(ref, "text/plain")}
    policy = RetryPolicy(Backoff.FIXED, 1)
    origin = await failed(rig, retry=policy, timeouts=Timeouts(run=HOUR), **given)
    before = await rig.get(origin)
    (result,) = await redriven(rig, origin)
    assert result.outcome is CREATED
    new = await rig.get(result.redrive_id)
    assert (new.origin_id, new.state, new.version) == (origin, JobState.SCHEDULED, 1)
    assert (new.priority, new.labels, new.input) == (4, {"team": "x"}, given["input"])
    assert (new.retry, new.timeouts) == (policy, Timeouts(run=HOUR))
    assert await rig.causes(new.id) == [Cause.REDRIVEN]
    assert await rig.get(origin) == before
    found = await rig.store.list_jobs(JobFilter("n", labels={"team": "x"}), None, 10)
    assert {record.id for record in found} == {origin, new.id}
    assert [job.id for job in await rig.claim(limit=9)] == [new.id]


async def test_a_redrive_that_is_asked_again_after_its_job_has_ended_made_that_one(rig):
    origin = await failed(rig)
    wish = {origin: twin(origin)}
    await rig.store.redrive(wish, "n", EPOCH)
    await rig.store.cancel([wish[origin]], "no", "n")
    (result,) = (await rig.store.redrive(wish, "n", EPOCH)).results
    assert (result.outcome, result.redrive_id) == (CREATED, wish[origin])


async def test_only_what_ended_without_success_is_repeated(rig):
    waiting, other = await rig.put(2)
    (job,) = await rig.claim()
    await rig.say(Succeeded(job.id, job.fence, "w1"))
    results = await redriven(rig, waiting, other, twin(waiting))
    assert [result.outcome for result in results] == [
        RedriveOutcome.REFUSED,
        RedriveOutcome.REFUSED,
        RedriveOutcome.NOT_FOUND,
    ]
    assert {results[0].state, results[1].state} == {JobState.SCHEDULED, JobState.SUCCEEDED}
    ended = await failed(rig, priority=9)
    (result,) = await redriven(rig, ended, namespace="m")
    assert result.outcome is RedriveOutcome.NOT_FOUND


async def test_a_second_click_finds_the_live_one_and_a_third_after_its_end_makes_another(rig):
    origin = await failed(rig)
    (first,) = await redriven(rig, origin)
    (again,) = await redriven(rig, origin)
    assert (again.outcome, again.redrive_id) == (EXISTING, first.redrive_id)
    await rig.store.cancel([first.redrive_id])
    (third,) = await redriven(rig, origin)
    assert third.outcome is CREATED
    assert third.redrive_id not in (first.redrive_id, origin)


async def test_many_clicks_at_once_make_one_job(rig):
    origins = [await failed(rig) for _ in range(3)]
    async with opened(rig.dsn) as other:

        async def click(store):
            wishes = {job_id: twin(job_id) for job_id in origins}
            return (await store.redrive(wishes, "n", EPOCH)).results

        answers = await asyncio.gather(*(click(s) for s in [rig.store, other] * 6))
    for place in range(3):
        results = [answer[place] for answer in answers]
        assert len({result.redrive_id for result in results}) == 1
        assert [result.outcome for result in results].count(CREATED) == 1
    assert len(await rig.store.list_jobs(JobFilter("n"), None, 100)) == 6


async def test_a_redrive_under_an_outdated_map_stores_nothing(rig):
    origin = await failed(rig)
    await rig.store.raise_epoch(9)
    with pytest.raises(StaleEpoch):
        await rig.store.redrive({origin: twin(origin)}, "n", 8)
    (result,) = (await rig.store.redrive({origin: twin(origin)}, "n", 9)).results
    assert result.outcome is CREATED


async def test_a_passed_deadline_is_dropped_and_a_start_timeout_begins_anew(rig):
    soon = datetime.now(UTC) + timedelta(seconds=60)
    (dated,) = await rig.put(expire_time=soon)
    (timed,) = await rig.put(timeouts=Timeouts(start=timedelta(seconds=60)))
    rig.pass_time(HOUR)
    assert {event.job_id for event in await rig.store.expire_overdue()} == {dated, timed}
    first, second = await redriven(rig, dated, timed)
    assert (await rig.get(first.redrive_id)).expire_time is None
    new = await rig.get(second.redrive_id)
    assert new.expire_time == new.due_time + timedelta(seconds=60)


async def test_a_job_of_a_schedule_and_a_keyed_job_can_be_repeated(rig):
    schedule, nominal = twin(UUID(int=0)), datetime(2026, 1, 1, tzinfo=UTC)
    (one,) = await rig.put(schedule_id=schedule, nominal_time=nominal)
    (other,) = await rig.put(idempotency_key="k", request_hash=b"h")
    await rig.store.cancel([one, other])
    assert [result.outcome for result in await redriven(rig, one, other)] == [CREATED, CREATED]


# --- change


async def test_a_waiting_job_is_moved_reprioritised_and_relabelled_with_one_event(rig):
    (job_id,) = await rig.put(delay=HOUR, labels={"a": "1", "b": "2"})
    later = datetime.now(UTC) + 2 * HOUR
    answer = await rig.store.change(
        job_id, "n", JobChange(True, later, 7, {"b": "2", "c": "3"}, version=1)
    )
    assert (answer.outcome, answer.due_now) == (CHANGED, False)
    record = await rig.get(job_id)
    assert (record.due_time, record.first_due_time, record.priority) == (later, later, 7)
    assert (record.labels, record.version) == ({"b": "2", "c": "3"}, 2)
    events = await rig.events(job_id)
    assert [event.cause for event in events] == [Cause.CREATED, Cause.UPDATED]
    assert events[-1] == answer.event
    for labels, found in (({"a": "1"}, []), ({"b": "2"}, [job_id]), ({"c": "3"}, [job_id])):
        assert await rig.store.match_jobs(JobFilter("n", labels=labels), None, 9) == found
    terms = rig.sql("SELECT name FROM job_terms ORDER BY name")
    assert terms == [("b",), ("c",)]


async def test_a_job_moved_to_now_is_claimed_and_one_moved_away_is_not(rig):
    (early,) = await rig.put(delay=HOUR)
    (late,) = await rig.put()
    assert (await rig.store.change(early, "n", JobChange(True))).due_now
    assert await changed(rig, late, move=True, due_time=datetime.now(UTC) + HOUR) is CHANGED
    assert [job.id for job in await rig.claim(limit=9)] == [early]
    slot = (await rig.store.pulse(None, 2 * HOUR, 10)).slot
    assert [due.count for due in slot.due_times] == [1]


async def test_priority_decides_who_is_claimed_first(rig):
    first, second = sorted(await rig.put(2))  # due together: the smaller id would be first
    assert await changed(rig, second, priority=3) is CHANGED
    assert [job.id for job in await rig.claim()] == [second]
    assert [job.id for job in await rig.claim()] == [first]


async def test_what_does_not_wait_or_has_another_version_is_left_alone(rig):
    (job_id,) = await rig.put()
    assert await changed(rig, job_id, priority=1, version=7) is ChangeOutcome.OTHER_VERSION
    assert await changed(rig, twin(job_id), priority=1) is ChangeOutcome.NOT_FOUND
    other = (await rig.store.change(job_id, "m", JobChange(priority=1))).outcome
    assert other is ChangeOutcome.NOT_FOUND
    (job,) = await rig.claim()
    answer = await rig.store.change(job_id, "n", JobChange(priority=1))
    assert (answer.outcome, answer.state) == (ChangeOutcome.FORBIDDEN, JobState.DISPATCHED)
    await rig.say(Succeeded(job.id, job.fence, "w1"))
    assert await changed(rig, job_id, move=True) is ChangeOutcome.FORBIDDEN
    assert (await rig.get(job_id)).priority == 0


async def test_a_job_cannot_be_moved_past_its_deadline_and_its_start_timeout_moves_along(rig):
    now = datetime.now(UTC)
    (dated,) = await rig.put(expire_time=now + HOUR)
    past = await changed(rig, dated, move=True, due_time=now + 2 * HOUR)
    assert past is ChangeOutcome.PAST_EXPIRY
    (timed,) = await rig.put(timeouts=Timeouts(start=timedelta(seconds=5)))
    assert await changed(rig, timed, move=True, due_time=now + HOUR) is CHANGED
    assert (await rig.get(timed)).expire_time == now + HOUR + timedelta(seconds=5)
    assert rig.sql("SELECT expire_time FROM queue WHERE job_id = %s", timed) == [
        (now + HOUR + timedelta(seconds=5),)
    ]


async def test_a_change_that_meets_a_claim_waits_and_finds_the_job_taken(rig):
    (job_id,) = await rig.put()
    with transaction(rig.dsn) as claim:
        claim.execute("SELECT FROM queue FOR UPDATE")
        change = asyncio.create_task(changed(rig, job_id, priority=5), name="change")
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await eventually(lambda: rig.sql(waiting)[0][0])
        claim.execute("DELETE FROM queue")
        claim.execute(
            "UPDATE jobs SET state = 2, version = 2, dispatch_no = 1, attempt = 1, worker_id = 'w'"
        )
        claim.execute("INSERT INTO in_flight VALUES (%s, clock_timestamp(), 'w')", [job_id])
        claim.execute(
            "INSERT INTO event_rows (job_id, version, state, reason, time, dispatch_no, worker_id)"
            " VALUES (%s, 2, 2, 2, clock_timestamp(), 1, 'w')",
            [job_id],
        )
        claim.execute(
            "INSERT INTO commits (size, job_ids, versions) VALUES (1, %s, '{2}')", [[job_id]]
        )
        claim.commit()
        assert await change is ChangeOutcome.FORBIDDEN


async def test_changes_claims_and_cancels_at_once_leave_a_sound_shard(rig):
    ids = await rig.put(30)
    async with opened(rig.dsn) as other:
        changes = [
            store.change(job_id, "n", JobChange(True, None, place % 9, {"p": str(place)}))
            for store in (rig.store, other)
            for place, job_id in enumerate(ids)
        ]
        claims = [other.claim("t", "w1", 3) for _ in range(6)]
        cancels = [rig.store.cancel(ids[start : start + 2]) for start in range(0, 30, 10)]
        await asyncio.gather(*changes, *claims, *cancels)
    # The auditor reads the tables after the test.
    while await rig.claim(limit=30):
        pass
    states = await rig.store.count_jobs(JobFilter("n"))
    assert states[JobState.CANCELLED] == 6
    assert states[JobState.DISPATCHED] == 24


# --- a test that nobody has seen fail proves nothing: each of these breaks one guard

MUTANTS = {
    "a redrive of what lives": (
        "redrives",
        "j.id, j.state",
        "j.id, 5::smallint",
        test_only_what_ended_without_success_is_repeated,
    ),
    "a second redrive of the same": (
        "redrives",
        "j.redrive_id, n.state",
        "j.redrive_id, NULL::smallint",
        test_a_second_click_finds_the_live_one_and_a_third_after_its_end_makes_another,
    ),
    "a redrive that looks away": (
        "redrive",
        "AND j.redrive_id IS NOT DISTINCT FROM r.seen",
        "",
        test_many_clicks_at_once_make_one_job,
    ),
    "a redrive under any map": (
        "redrive",
        "AND m.epoch <= %(epoch)s",
        "AND %(epoch)s > 0",
        test_a_redrive_under_an_outdated_map_stores_nothing,
    ),
    "a change of any version": (
        "update_job",
        "%(version)s::bigint = 0 OR ",
        "%(version)s::bigint >= 0 OR ",
        test_what_does_not_wait_or_has_another_version_is_left_alone,
    ),
    "a change that counts no version": (
        "update_job",
        "version = j.version + 1",
        "version = j.version",
        test_a_waiting_job_is_moved_reprioritised_and_relabelled_with_one_event,
    ),
    "a change that leaves the queue as it was": (
        "update_job",
        "WHERE q.ctid = p.place",
        "WHERE false",
        test_priority_decides_who_is_claimed_first,
    ),
    "a change past the deadline": (
        "update_job",
        "OR p.expire_time > p.due",
        "OR true",
        test_a_job_cannot_be_moved_past_its_deadline_and_its_start_timeout_moves_along,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_broken_changes_are_found_out(rig, mutant):
    name, guard, instead, claim = MUTANTS[mutant]
    query = rig.store._queries[name]
    broken = replace(query, sql=query.sql.replace(guard, instead))
    assert broken != query
    rig.store._queries.by_name[name] = broken

    async def proven() -> None:
        await claim(rig)
        audit(rig.dsn)

    with pytest.raises((AssertionError, psycopg.Error, MeshError, pytest.fail.Exception)):
        await proven()
    rig.sql("TRUNCATE jobs, event_rows, queue, in_flight, commits, job_terms")


# --- counts, matches, places


async def test_counts_are_by_state_and_obey_the_filter(rig):
    await rig.put(3, labels={"a": "b"})
    await rig.put(2, type="u")
    await failed(rig, type="t", priority=9)
    await rig.claim(limit=1)
    counted = rig.store.count_jobs
    scheduled, dispatched, ended = JobState.SCHEDULED, JobState.DISPATCHED, JobState.FAILED
    assert await counted(JobFilter("n")) == {scheduled: 4, dispatched: 1, ended: 1}
    assert await counted(JobFilter("n", states=frozenset({scheduled}))) == {scheduled: 4}
    only_u = JobFilter("n", types=frozenset({"u"}), states=frozenset({scheduled}))
    assert await counted(only_u) == {scheduled: 2}
    assert await counted(JobFilter("n", labels={"a": "b"})) == {scheduled: 2, dispatched: 1}
    assert await counted(JobFilter("n", states=frozenset({ended}))) == {ended: 1}
    assert await counted(JobFilter("m")) == {}


async def test_those_that_were_repeated_can_be_left_out(rig):
    first, second = await failed(rig), await failed(rig)
    await redriven(rig, first)
    wanted = JobFilter("n", states=frozenset({JobState.FAILED}), redriven=False)
    assert await rig.store.match_jobs(wanted, None, 9) == [second]
    assert await rig.store.count_jobs(wanted) == {JobState.FAILED: 1}


async def test_the_place_in_the_queue_counts_what_is_before_a_job(rig):
    await rig.put(3)
    await rig.put(2, priority=5)
    await rig.put(4, delay=HOUR, priority=5)
    await rig.put(7, type="u")
    (job_id,) = await rig.put()
    place = await rig.store.place_in_queue(await rig.get(job_id))
    assert (place.ahead, place.capped) == (5, False)
    capped = await rig.store.place_in_queue(await rig.get(job_id), cap=2)
    assert (capped.ahead, capped.capped) == (2, True)


async def test_the_pace_is_that_of_recent_claims_of_the_type(rig):
    assert await rig.store.claims_per_second("t") == 0
    await rig.put(20)
    assert await rig.store.claims_per_second("t") == 0
    await rig.claim(limit=20)
    assert 5 < await rig.store.claims_per_second("t") <= 20
    assert await rig.store.claims_per_second("u") == 0


# --- plans


def explained(rig, sql: str, params: dict) -> str:
    options = connection_options(StoreSettings())
    with psycopg.connect(rig.dsn, **options) as connection:
        statement = "EXPLAIN (ANALYZE, BUFFERS, SUMMARY OFF) " + sql.replace(")b", ")s")
        lines = connection.execute(statement.encode(), params)
        text = "\n".join(row[0] for row in lines)
        connection.rollback()
        return text


def buffers(plan: str) -> int:
    (line,) = [row for row in plan.splitlines() if "shared hit=" in row][:1]
    return int(line.split("shared hit=")[1].split()[0])


FAILED = frozenset({JobState.FAILED})
COUNTED = {
    "namespace": JobFilter("n3"),
    "type": JobFilter("n3", types=frozenset({"type1"})),
    "failed": JobFilter("n10", states=FAILED, redriven=False),
    "running": JobFilter("n10", states=frozenset({JobState.RUNNING})),
    "scheduled": JobFilter("n10", states=frozenset({JobState.SCHEDULED})),
    "label": JobFilter("n3", labels={"team": "t3"}),
}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_no_count_and_no_match_walks_a_whole_table(many, analyzed):
    if analyzed:
        many.sql("ANALYZE")
    for name, wanted in COUNTED.items():
        few = await many.store._are_few(wanted)
        for query, params in (count_query(wanted, few), match_query(wanted, None, 500, few)):
            plan = explained(many, query.sql, params)
            assert "Seq Scan" not in plan, f"{name}: {plan}"


@pytest.mark.parametrize("analyzed", [False, True])
async def test_changes_and_places_are_index_probes(many, analyzed):
    many.sql(
        "INSERT INTO queue SELECT id, due_time, NULL, 0, false, type FROM jobs WHERE state = 4"
    )
    (origin,) = many.sql("SELECT id FROM jobs WHERE state = 5 LIMIT 1")[0]
    (job_id, type_, due) = many.sql("SELECT id, type, due_time FROM jobs WHERE state = 1")[0]
    if analyzed:
        many.sql("ANALYZE")
    queries = many.store._queries
    change = JobChange(True, due + HOUR, 3, {"a": "b"})
    given = {
        "redrives": {"ids": [origin], "namespace": "n0"},
        "redrive": {
            "ids": [origin],
            "new_ids": [twin(origin)],
            "seen": [None],
            "epoch": EPOCH,
            "traceparent": None,
        },
        "update_job": {
            "id": job_id,
            "namespace": "n",
            "set_time": True,
            "due_time": change.due_time,
            "priority": 3,
            "set_labels": True,
            "labels": '{"a": "b"}',
            "version": 0,
        },
        "waiting": {"id": job_id, "namespace": "n"},
        "jobs_ahead": {"type": type_, "priority": 0, "due_time": due, "id": job_id, "cap": 1000},
        "recent_claims": {"type": type_},
    }
    for name, params in given.items():
        sql = queries[name].sql.replace("%(seen)b", "%(seen)s::uuid[]")
        plan = explained(many, sql, params)
        assert "Seq Scan on jobs" not in plan, f"{name}: {plan}"
        assert "Seq Scan on queue" not in plan, f"{name}: {plan}"
        assert buffers(plan) < 300, f"{name}: {plan}"
