"""Fewer rows than events: what the rows leave out the history tells, and older neighbours read and
write the same history.
"""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import count

import psycopg
import pytest

from services.mesh.jobs.model import Failure
from services.mesh.jobs.reports import Failed, HandedBack, Started, Succeeded
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import JobChange
from services.mesh.store.settings import StoreSettings, connection_options
from tests.integration.store_rig import Rig, audit, rig_of_test  # noqa: F401

HOUR = timedelta(hours=1)
CREATED, CLAIMED, STARTED, SUCCEEDED = Cause.CREATED, Cause.CLAIMED, Cause.STARTED, Cause.SUCCEEDED


def rows(rig: Rig) -> list[int]:
    """The versions that have a row."""
    return [row[0] for row in rig.sql("SELECT version FROM event_rows ORDER BY job_id, version")]


async def test_a_plain_job_has_one_row_and_its_whole_history_at_every_step(rig):
    (job_id,) = await rig.put()
    record = await rig.get(job_id)
    (created,) = await rig.events(job_id)
    assert (created.cause, created.time, created.due_time) == (
        CREATED,
        record.create_time,
        record.due_time,
    )
    (job,) = await rig.claim()
    _, claimed = await rig.events(job_id)
    assert (claimed.cause, claimed.state, claimed.version) == (CLAIMED, JobState.DISPATCHED, 2)
    assert (claimed.fence, claimed.attempt, claimed.worker_id) == (1, 1, "w1")
    assert rows(rig) == []
    await rig.say(Succeeded(job.id, job.fence, "w1"))
    assert rows(rig) == [4]
    events = await rig.events(job_id)
    record = await rig.get(job_id)
    assert events[:2] == [created, claimed], "what was told once is told again"
    assert [e.cause for e in events] == [CREATED, CLAIMED, STARTED, SUCCEEDED]
    assert [e.time for e in events[1:]] == [
        record.dispatch_time,
        record.start_time,
        record.end_time,
    ]
    assert {(e.fence, e.attempt, e.worker_id) for e in events[1:]} == {(1, 1, "w1")}


async def test_an_attempt_that_ends_in_another_way_still_tells_its_claim(rig):
    job = await rig.claimed()
    await rig.say(Started(job.id, job.fence, "w1"))
    assert await rig.causes(job.id) == [CREATED, CLAIMED, STARTED]
    await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "no")))
    assert await rig.causes(job.id) == [CREATED, CLAIMED, STARTED, Cause.FAILED]
    job = await rig.claimed()
    await rig.say(HandedBack(job.id, job.fence, "w1"))
    (again,) = await rig.claim()
    assert (again.id, again.fence) == (job.id, 2)
    events = await rig.events(job.id)
    assert [(e.cause, e.fence) for e in events] == [
        (CREATED, 0),
        (CLAIMED, 1),
        (Cause.HANDED_BACK, 1),
        (CLAIMED, 2),
    ]
    await rig.store.cancel([job.id])
    assert await rig.events(job.id) == [*events, (await rig.events(job.id))[-1]]
    job = await rig.claimed()
    await rig.say(Failed(job.id, job.fence, "w1", Failure("E", "no")))
    assert await rig.causes(job.id) == [CREATED, CLAIMED, STARTED, Cause.FAILED]


async def test_a_job_that_was_moved_still_tells_when_it_was_first_due(rig):
    (job_id,) = await rig.put(delay=HOUR)
    (created,) = await rig.events(job_id)
    await rig.store.change(job_id, "n", JobChange(True, created.due_time + HOUR))
    await rig.store.change(job_id, "n", JobChange(True))
    events = await rig.events(job_id)
    assert events[0] == created
    assert [e.cause for e in events[1:]] == [Cause.UPDATED] * 2
    (job_id,) = await rig.put()
    (created,) = await rig.events(job_id)
    await rig.store.change(job_id, "n", JobChange(priority=3))
    assert (await rig.events(job_id))[0] == created


# --- older neighbours: statements as they stood before there were fewer rows than events

INTO_EVENTS = (
    "INSERT INTO job_events (job_id, version, state, reason, time, attempt, dispatch_no, worker_id)"
)
INTO_COMMITS = "INSERT INTO commits (size, job_ids, versions, firsts)"
CLAIM = (
    "WITH c AS (UPDATE jobs SET state = 2, version = version + 1, dispatch_no = 1, attempt = 1,"
    " worker_id = 'w1', dispatch_time = clock_timestamp() RETURNING *), q AS (DELETE FROM queue),"
    " f AS (INSERT INTO in_flight SELECT id, dispatch_time, 'w1' FROM c),"
    f" o AS ({INTO_COMMITS} SELECT 1, ARRAY[id], ARRAY[version], NULL FROM c)"
    f" {INTO_EVENTS} SELECT id, version, 2, 2, dispatch_time, 1, 1, 'w1' FROM c"
)
SUCCEED = (
    "WITH e AS (UPDATE jobs SET state = 4, version = version + 2, start_time = clock_timestamp(),"
    " end_time = clock_timestamp() RETURNING *), f AS (DELETE FROM in_flight),"
    f" o AS ({INTO_COMMITS} SELECT 2, ARRAY[id], ARRAY[version], ARRAY[version - 1] FROM e)"
    f" {INTO_EVENTS} SELECT id, version - 1, 3, 3, start_time, 1, 1, 'w1' FROM e"
    " UNION ALL SELECT id, version, 4, 4, end_time, 1, 1, 'w1' FROM e"
)
CANCEL = (
    "WITH e AS (UPDATE jobs SET state = 6, version = version + 1, end_time = clock_timestamp()"
    " RETURNING *), f AS (DELETE FROM in_flight),"
    f" o AS ({INTO_COMMITS} SELECT 1, ARRAY[id], ARRAY[version], NULL FROM e)"
    f" {INTO_EVENTS} SELECT id, version, 6, 10, end_time, 1, 1, 'w1' FROM e"
)
HISTORY = "SELECT e.version FROM unnest(%(ids)s) AS r (id) JOIN job_events e ON e.job_id = r.id"


@pytest.mark.parametrize("claims", ["older", "newer"])
@pytest.mark.parametrize("ends", ["older", "newer"])
async def test_older_and_newer_writers_leave_the_same_history(rig, claims, ends):
    (job_id,) = await rig.put()
    if claims == "older":
        rig.sql(CLAIM)
    else:
        await rig.claim()
    if ends == "older":
        rig.sql(SUCCEED)
    else:
        await rig.say(Succeeded(job_id, 1, "w1"))
    events = await rig.events(job_id)
    assert [e.cause for e in events] == [CREATED, CLAIMED, STARTED, SUCCEEDED]
    record = await rig.get(job_id)
    assert events[1].time == record.dispatch_time
    audit(rig.dsn)


async def test_an_older_cancel_carries_the_claim_and_may_have_overtaken_it(rig):
    job = await rig.claimed()
    rig.sql(CANCEL)
    assert await rig.causes(job.id) == [CREATED, CLAIMED, Cause.CANCELLED]
    assert rig.sql("SELECT version, overtook FROM event_rows") == [(3, True)]


async def test_an_older_reader_is_told_the_whole_history_and_an_older_purge_removes_it(rig):
    job = await rig.claimed()
    await rig.say(Succeeded(job.id, job.fence, "w1"))
    told = "SELECT version, reason FROM job_events WHERE job_id = %s ORDER BY version"
    assert rig.sql(told, job.id) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    crossed = (
        "SELECT e.job_id FROM job_events e JOIN job_events n ON n.job_id = e.job_id"
        " AND n.version = e.version + 1 WHERE age(n.xmin) > age(e.xmin)"
    )
    assert rig.sql(crossed) == []
    rig.sql(
        "WITH g AS (DELETE FROM jobs RETURNING id), o AS (DELETE FROM commits)"
        " DELETE FROM job_events e USING g WHERE e.job_id = g.id"
    )
    assert rows(rig) == []


# --- plans

TYPES = {"versions": "integer[]", "fences": "integer[]", "limit": "bigint", "xid": "text"}
PLANNED = ("events_after", "events_since", "crossed", "ends", "dispatch_history", "recent_claims")


def planned(rig: Rig, statement: str) -> list[str]:
    numbers = count(1)

    def parameter(found: re.Match[str]) -> str:
        kind = "text" if found[1] in ("type", "namespace") else TYPES.get(found[1], "text[]")
        return f"${next(numbers)}::{'uuid[]' if found[1] == 'ids' else kind}"

    statement = re.sub(r"%\((\w+)\)[bst]", parameter, statement)
    with psycopg.connect(rig.dsn, **connection_options(StoreSettings())) as connection:
        found = connection.execute(b"EXPLAIN (GENERIC_PLAN) " + statement.encode()).fetchall()
    return [row[0].strip() for row in found]


@pytest.mark.parametrize("name", [*PLANNED, "job_events"])
async def test_events_are_probed_job_by_job_and_version_by_version(rig, name):
    statement = HISTORY if name == "job_events" else rig.store._queries[name].sql
    plan = planned(rig, statement)
    text = "\n".join(plan)
    assert "Function Scan on events_between" not in text, "it is inlined"
    probes = [at for at, line in enumerate(plan) if re.search(r" on (event_rows|jobs)\b", line)]
    assert probes
    for at in probes:
        assert re.search(r"using (event_rows_pkey|jobs_pkey)", plan[at]), text
        assert re.match(r"Index Cond: \(+(job_id|id) = ", plan[at + 1]), text
