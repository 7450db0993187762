"""What the server samples of a shard's tables: keys, roughly, and not each time it looks."""

from __future__ import annotations

import pytest

from tests.integration.store_rig import rig_of_test  # noqa: F401

#: The columns that statements search by; plans need to know about nothing else.
SEARCHED = {
    "jobs": {
        "id",
        "namespace",
        "type",
        "state",
        "idempotency_key",
        "unique_key",
        "schedule_id",
        "nominal_time",
    },
    "event_rows": {"job_id", "version"},
    "commits": {"xid", "time"},
    "job_terms": {"namespace", "name", "value", "job_id"},
}
BUSY = (*SEARCHED, "queue", "in_flight")


@pytest.mark.parametrize("table", SEARCHED)
def test_of_a_busy_table_only_what_is_searched_by_is_sampled(rig, table):
    """A column that a later migration adds says whether it is: by default it would be, dearly."""
    targets = dict(
        rig.sql(
            "SELECT attname, attstattarget FROM pg_attribute WHERE attrelid = %s::regclass"
            " AND attnum > 0 AND NOT attisdropped",
            table,
        )
    )
    assert targets == {name: 10 if name in SEARCHED[table] else 0 for name in targets}
    assert targets.keys() >= SEARCHED[table]


@pytest.mark.parametrize("table", BUSY)
def test_a_busy_table_is_sampled_when_half_of_it_has_changed(rig, table):
    ((options,),) = rig.sql("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", table)
    assert {
        "autovacuum_analyze_scale_factor=0.5",
        "autovacuum_analyze_threshold=5000",
    } <= set(options)


async def test_a_sample_of_jobs_has_ten_buckets_at_most(rig):
    """The server reads 300 rows for each: as many as the column needs that has the most."""
    await rig.put(500)
    rig.sql("ANALYZE jobs")
    bounds = rig.sql("SELECT cardinality(histogram_bounds) FROM pg_stats WHERE tablename = 'jobs'")
    assert max(count or 0 for (count,) in bounds) == 11
