"""Lists: every filter, stable pages, and plans that never walk a whole table."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from random import Random

import psycopg
import pytest
from psycopg.types.json import Jsonb

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import JobFilter
from services.mesh.jobs.reports import Failed, Started, Succeeded
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import LIVE, JobState
from services.mesh.store.listing import list_query, living_query
from services.mesh.store.settings import StoreSettings, connection_options
from tests.integration.store_rig import EPOCH, new_job, rig_of_test, until  # noqa: F401

HOUR = timedelta(hours=1)


async def listed(rig, limit: int = 100, **fields) -> list:
    return [record.id for record in await rig.store.list_jobs(JobFilter(**fields), None, limit)]


async def test_pages_are_newest_first_and_stable_while_jobs_arrive(rig):
    old = sorted(await rig.put(25))
    found, before = [], None
    while page := await rig.store.list_jobs(JobFilter("n"), before, 10):
        found += [record.id for record in page]
        before = found[-1]
        await rig.put(3)
    assert found[-25:] == list(reversed(old))
    assert found == sorted(found, reverse=True)


async def test_lists_carry_sizes_but_no_bytes_unless_asked(rig):
    job = await rig.claimed()
    (record,) = await rig.store.list_jobs(JobFilter("n"), None, 10)
    assert (record.input.data, record.input.size) == (None, 2)
    (record,) = await rig.store.list_jobs(JobFilter("n"), None, 10, payloads=True)
    assert record.input.data == b"in"
    (record,) = await rig.store.get_jobs([job.id])
    assert record.input.data is None


async def test_namespaces_do_not_see_each_other(rig):
    mine = await rig.put(2)
    theirs = await rig.put(2, namespace="m")
    assert sorted(await listed(rig, namespace="n")) == sorted(mine)
    assert sorted(await listed(rig, namespace="m")) == sorted(theirs)
    assert sorted(await listed(rig)) == sorted(mine + theirs)


async def test_every_state_can_be_listed(rig):
    ids = dict(zip("sdrofcex", await rig.put(8), strict=True))
    by_id = {job.id: job for job in await rig.claim(limit=8)}

    def told(name, kind, *more):
        return kind(ids[name], by_id[ids[name]].fence, "w1", *more)

    await rig.store.sweep([(ids["s"], 1)])
    await rig.say(told("r", Started), told("o", Succeeded), told("f", Failed, Failure("E", "")))
    await rig.store.cancel([ids["c"], ids["x"]])
    await rig.store.sweep([(ids["e"], 1)])
    rig.sql("UPDATE queue SET expire_time = now() WHERE job_id = %s", ids["e"])
    await rig.store.expire_overdue()
    for states, names in (
        ({JobState.SCHEDULED}, "s"),
        ({JobState.DISPATCHED}, "d"),
        ({JobState.RUNNING}, "r"),
        ({JobState.DISPATCHED, JobState.RUNNING}, "dr"),
        ({JobState.SUCCEEDED}, "o"),
        ({JobState.FAILED}, "f"),
        ({JobState.CANCELLED}, "cx"),
        ({JobState.EXPIRED, JobState.FAILED}, "ef"),
        ({JobState.SCHEDULED, JobState.FAILED}, "sf"),
    ):
        for namespace in ("n", None):
            found = await listed(rig, namespace=namespace, states=frozenset(states))
            assert sorted(found) == sorted(ids[name] for name in names), states


async def test_types_and_labels_restrict(rig):
    a = await rig.put(2, type="a", labels={"team": "x"})
    b = await rig.put(2, type="b", labels={"team": "x", "tier": "1"})
    c = await rig.put(2, type="c")
    assert sorted(await listed(rig, namespace="n", types=frozenset({"a"}))) == sorted(a)
    assert sorted(await listed(rig, namespace="n", types=frozenset({"a", "c"}))) == sorted(a + c)
    assert sorted(await listed(rig, namespace="n", labels={"team": "x"})) == sorted(a + b)
    both = {"team": "x", "tier": "1"}
    assert sorted(await listed(rig, namespace="n", labels=both)) == sorted(b)
    assert sorted(await listed(rig, labels=both)) == sorted(b)
    assert await listed(rig, namespace="n", types=frozenset({"a"}), labels=both) == []
    assert await listed(rig, namespace="m", labels=both) == []


async def test_times_bound_by_the_shards_clock(rig):
    first = await rig.put(2)
    (middle,) = await rig.put()
    time = (await rig.get(middle)).create_time
    last = await rig.put(2)
    assert sorted(await listed(rig, created_before=time)) == sorted(first)
    assert sorted(await listed(rig, created_after=time)) == sorted([middle, *last])
    assert await listed(rig, created_after=time, created_before=time + HOUR, limit=1)
    far = datetime(2100, 1, 1, tzinfo=UTC)
    assert await listed(rig, namespace="n", created_after=far) == []


async def test_jobs_of_a_schedule_can_be_listed(rig):
    schedule_id, time = new_job().id, datetime(2026, 1, 1, tzinfo=UTC)
    mine = await rig.put(schedule_id=schedule_id, nominal_time=time)
    await rig.put()
    assert await listed(rig, namespace="n", schedule_id=schedule_id) == mine


async def test_getting_jobs_leaves_out_what_does_not_exist(rig):
    ids = await rig.put(2)
    records = await rig.store.get_jobs([*ids, new_job().id, ids[0]])
    assert sorted(record.id for record in records) == sorted(ids)


# --- plans

ROWS = 100_000


@pytest.fixture
async def many(rig):
    """A hundred thousand jobs in all states, of several types, tenants and labels."""
    await rig.store.put_jobs([new_job(labels={"team": "x"})], EPOCH)
    random = Random(3)
    with psycopg.connect(rig.dsn, autocommit=True) as connection:
        with connection.cursor().copy(
            "COPY jobs (id, namespace, type, state, version, priority, due_time, first_due_time,"
            " create_time, end_time, labels) FROM STDIN"
        ) as copy:
            start = datetime(2026, 1, 1, tzinfo=UTC)
            for number in range(ROWS):
                time = start + number * timedelta(seconds=1)
                job_id = new_job_id(random.randrange(4096), int(time.timestamp() * 1000), random)
                state = 4 if number % 50 else 5
                labels = json.dumps({"team": f"t{number % 100}"})
                row = (f"n{number % 20}", f"type{number % 7}", state, 4, 0, time, time, time, time)
                copy.write_row((job_id, *row, labels))
        connection.execute(
            "INSERT INTO job_terms SELECT namespace, 'team', labels ->> 'team', id FROM jobs"
            " ON CONFLICT DO NOTHING"
        )
        connection.execute(
            "INSERT INTO job_terms SELECT namespace, '~unsuccessful', '', id FROM jobs"
            " WHERE state = 5"
        )
    yield rig
    rig.sql("TRUNCATE jobs, job_terms, event_rows, queue, commits")


async def plan(rig, wanted: JobFilter, before=None) -> str:
    few = await rig.store._are_few(wanted)
    query, params = list_query(rig.store._queries, wanted, before, 50, False, few)
    if "types" in params:  # the plain connection below does not know the store's arrays
        params["types"] = sorted(wanted.types)
    if "labels" in params:
        params["labels"] = Jsonb(dict(wanted.labels))
    options = connection_options(StoreSettings())
    with psycopg.connect(rig.dsn, **options) as connection:
        statement = "EXPLAIN (ANALYZE, BUFFERS, SUMMARY OFF) " + query.sql.replace(")b", ")s")
        return "\n".join(row[0] for row in connection.execute(statement.encode(), params))


MIDDLE = new_job_id(0, int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000), Random(1))
FILTERS = {
    "namespace": JobFilter("n3"),
    "type": JobFilter("n3", types=frozenset({"type1"})),
    "types": JobFilter("n3", types=frozenset({"type1", "type2"})),
    "failed": JobFilter("n10", states=frozenset({JobState.FAILED})),
    "running": JobFilter("n10", states=frozenset({JobState.RUNNING})),
    "scheduled": JobFilter("n10", states=frozenset({JobState.SCHEDULED})),
    "live": JobFilter("n10", states=LIVE),
    "live of a type": JobFilter("n10", states=LIVE, types=frozenset({"type1"})),
    "live anywhere": JobFilter(states=LIVE),
    "label": JobFilter("n3", labels={"team": "t3"}),
    "time": JobFilter("n3", created_before=datetime(2026, 1, 1, 6, tzinfo=UTC)),
    "anything": JobFilter(),
}


async def test_no_list_walks_a_whole_table(many):
    for analyzed in (False, True):
        if analyzed:
            many.sql("ANALYZE")
        for name, wanted in FILTERS.items():
            for before in (None, MIDDLE):
                assert_short(name, await plan(many, wanted, before))


async def test_no_list_of_what_lives_walks_what_has_ended(many):
    """Neither where little lives, nor where so much does that walking the ids is better."""
    for living in (100, 50_000):
        newest = f"SELECT id FROM jobs ORDER BY id DESC LIMIT {living}"
        many.sql(f"UPDATE jobs SET state = 1 WHERE id IN ({newest})")
        many.sql(
            "INSERT INTO queue (job_id, due_time, priority, later, type)"
            " SELECT id, due_time, 0, false, type FROM jobs WHERE state = 1 ON CONFLICT DO NOTHING"
        )
        for name in ("scheduled", "live", "live of a type", "live anywhere"):
            assert_short(name, await plan(many, FILTERS[name]))
        many.sql("ANALYZE")
        for name in ("scheduled", "live", "live of a type", "live anywhere"):
            assert_short(name, await plan(many, FILTERS[name]))


async def test_dead_rows_are_not_walked_to_know_whether_little_lives(rig):
    wanted = JobFilter(states=frozenset({JobState.SCHEDULED}))
    assert await rig.store._are_few(wanted), "before the first vacuum it is counted"
    with psycopg.connect(rig.dsn) as held:
        held.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        held.execute("SELECT count(*) FROM queue")
        rig.sql(
            "INSERT INTO queue (job_id, due_time, priority, later, type)"
            " SELECT gen_random_uuid(), now(), 0, false, 't' FROM generate_series(1, 30000)"
        )
        with psycopg.connect(rig.dsn, autocommit=True) as connection:
            connection.execute("VACUUM queue")
        assert not await rig.store._are_few(wanted)
        rig.sql("DELETE FROM queue")
        # Who deleted tells the statistics after hanging up.
        told = "SELECT pg_stat_get_live_tuples('queue'::regclass)"
        await until(lambda: rig.sql(told) == [(0,)])
        assert await rig.store._are_few(wanted)
        query = living_query(wanted)
        assert query is not None
        found = rig.sql("EXPLAIN (ANALYZE, SUMMARY OFF) " + query.sql)
        scans = [row[0] for row in found if "Scan on queue" in row[0]]
        assert scans
        assert all("never executed" in scan for scan in scans)


def assert_short(name: str, found: str) -> None:
    assert "Seq Scan" not in found, f"{name}: {found}"
    pages = sum(
        int(line.split("shared hit=")[1].split()[0])
        for line in found.splitlines()[:2]
        if "shared hit=" in line
    )
    assert pages < 2500, f"{name}: {found}"
