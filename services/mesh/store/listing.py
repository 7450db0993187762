"""Composes the statements of lists and counts: only the conditions that were asked for, so that a
plan exists.

A list is walked newest first in the order of ids, by the index that fits the filter best. What
lives may be little among much that has ended, or as much as that: where there are `FEW`, which is
counted first, a list of what lives begins with all of them, and else with the newest ids. Numbers
are written into the statement (they come from enums), because a partial index is used only when the
planner can see that its condition holds; all else is a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from uuid import UUID

from psycopg.types.json import Jsonb

from services.mesh.jobs.ids import first_id_at
from services.mesh.jobs.model import JobFilter
from services.mesh.jobs.states import IN_FLIGHT, LIVE, UNSUCCESSFUL, JobState
from services.mesh.store.arrays import Texts
from services.mesh.store.queries import Queries, Query

# Ids are dated by whoever minted them, rows by the shard. A time filter walks the ids with this
# much room for the difference, and then looks at the rows.
_SKEW_MS = 3_600_000

Condition = tuple[str, dict[str, object]]

#: So many jobs that live are looked at one by one.
FEW = 10_000
#: Where the jobs of live states are listed besides. A row may outlive the state, never the reverse.
_LISTS = (
    (frozenset({JobState.SCHEDULED}), "queue"),
    (IN_FLIGHT, "in_flight"),
    (frozenset({JobState.BLOCKED}), "blocked"),
)
#: What there is from the floors on, and what is known to lie below them (see `floors`): all else
#: that the tables' indexes have is dead. The OFFSETs keep the planner from walking it all the same.
_FROM = {
    "queue": (
        "(SELECT q.job_id, q.type FROM queue q"
        " WHERE q.due_time >= (SELECT f.due_time FROM floors f WHERE f.one)"
        " UNION ALL SELECT q.job_id, q.type"
        " FROM floors f CROSS JOIN LATERAL jsonb_each_text(f.types) AS o (type, since)"
        " CROSS JOIN LATERAL (SELECT w.job_id, w.type FROM queue w"
        " WHERE w.type = o.type AND w.due_time >= o.since::timestamptz"
        " AND w.due_time < f.due_time OFFSET 0) AS q WHERE f.one)"
    ),
    "in_flight": (
        "(SELECT i.job_id FROM in_flight i"
        " WHERE i.dispatch_time >= (SELECT f.dispatch_time FROM floors f WHERE f.one)"
        " UNION ALL SELECT i.job_id FROM floors f CROSS JOIN LATERAL unnest(f.long_ago) AS l (time)"
        " CROSS JOIN LATERAL (SELECT w.job_id FROM in_flight w"
        " WHERE w.dispatch_time = l.time ORDER BY w.dispatch_time OFFSET 0) AS i"
        " WHERE f.one AND l.time < f.dispatch_time)"
    ),
    "blocked": "blocked",
}
# Lateral, and not to be flattened: the planner would rather walk the ids than sort.
_LIVING = "({lists}) AS l CROSS JOIN LATERAL (SELECT * FROM jobs WHERE id = l.job_id OFFSET 0) AS j"
_TERM = (
    "(SELECT job_id AS id FROM job_terms WHERE namespace = %(namespace)s"
    " AND name = {name} AND value = {value}) AS t JOIN jobs j USING (id)"
)

_SIZE = (
    "CASE WHEN coalesce(pg_stat_get_last_autovacuum_time('{name}'::regclass),"
    " pg_stat_get_last_vacuum_time('{name}'::regclass)) IS NULL"
    " THEN (SELECT count(*) FROM (SELECT FROM {rows} AS r LIMIT {most}) AS l)"
    " ELSE pg_stat_get_live_tuples('{name}'::regclass) END"
)


def living_query(jobs: JobFilter) -> Query | None:
    """About how many jobs the filter's states have; None if it has others.

    By the server's statistics: to count means to walk over all that has left the table since
    somebody began to hold a transaction open. A table that was never vacuumed, or whose statistics
    were lost in a crash, has none to be believed; it is counted as far as `FEW` and one.
    """
    if not jobs.states or not jobs.states <= LIVE:
        return None
    names = _lists(jobs.states)
    sizes = " + ".join(_SIZE.format(name=n, rows=_FROM[n], most=FEW + 1) for n in names)
    return Query("count_living", f"SELECT {sizes}", False, prepared=False)


def list_query(
    queries: Queries, jobs: JobFilter, before: UUID | None, limit: int, payloads: bool, few: bool
) -> tuple[Query, dict[str, object]]:
    """The statement for one page and its parameters; `few`: of the states' jobs there are few."""
    conditions, params = _conditions(jobs, before)
    columns = queries.fragments["job_columns"]
    bytes_ = "j.input, j.output" if payloads else "NULL::bytea, NULL::bytea"
    sql = (
        f"SELECT {columns}, {bytes_} FROM {_source(jobs, few)} "
        f"WHERE {' AND '.join(conditions) or 'true'} ORDER BY j.id DESC LIMIT {int(limit)}"
    )
    return Query("list_jobs", sql, writes=False, prepared=False), params


def match_query(
    jobs: JobFilter, before: UUID | None, limit: int, few: bool
) -> tuple[Query, dict[str, object]]:
    """The statement for a page of ids, newest first."""
    conditions, params = _conditions(jobs, before)
    sql = (
        f"SELECT j.id FROM {_source(jobs, few)} "
        f"WHERE {' AND '.join(conditions) or 'true'} ORDER BY j.id DESC LIMIT {int(limit)}"
    )
    return Query("match_jobs", sql, writes=False, prepared=False), params


def count_query(jobs: JobFilter, few: bool) -> tuple[Query, dict[str, object]]:
    """The statement that counts jobs by state."""
    conditions, params = _conditions(jobs, None)
    source = _source(jobs, few)
    if not few and jobs.states == {JobState.SCHEDULED} and not jobs.labels:
        source = f"{_FROM['queue']} AS q JOIN jobs j ON j.id = q.job_id AND j.type = q.type"
    sql = (
        f"SELECT j.state, count(*) FROM {source} "
        f"WHERE {' AND '.join(conditions) or 'true'} GROUP BY j.state"
    )
    return Query("count_jobs", sql, writes=False, prepared=False), params


def _source(jobs: JobFilter, few: bool) -> str:
    """What the list walks: the shortest list that holds all it asks for."""
    if few:
        lists = " UNION ".join(f"SELECT job_id FROM {_FROM[n]} AS t" for n in _lists(jobs.states))
        return _LIVING.format(lists=lists)
    if jobs.states and jobs.states <= IN_FLIGHT:
        return f"{_FROM['in_flight']} AS f JOIN jobs j ON j.id = f.job_id"
    if jobs.states == {JobState.BLOCKED}:
        return "blocked b JOIN jobs j ON j.id = b.job_id"
    if jobs.namespace is None:
        return "jobs j"
    if jobs.labels:
        return _TERM.format(name="%(label_name)s", value="%(label_value)s")
    if jobs.states and jobs.states <= UNSUCCESSFUL:
        return _TERM.format(name="'~unsuccessful'", value="''")
    return "jobs j"


def _lists(states: Collection[JobState]) -> list[str]:
    return [name for held, name in _LISTS if not held.isdisjoint(states)]


def _conditions(jobs: JobFilter, before: UUID | None) -> tuple[list[str], dict[str, object]]:
    conditions: list[str] = []
    params: dict[str, object] = {}
    for condition, values in (*_by_content(jobs), *_by_time(jobs, before)):
        conditions.append(condition)
        params |= values
    return conditions, params


def _by_content(jobs: JobFilter) -> Iterator[Condition]:
    if jobs.namespace is not None:
        yield "j.namespace = %(namespace)s", {"namespace": jobs.namespace}
    if jobs.states:
        yield f"j.state IN ({_numbers(jobs.states)})", {}
    if len(jobs.types) == 1:
        yield "j.type = %(type)s", {"type": next(iter(jobs.types))}
    elif jobs.types:
        yield "j.type = ANY(%(types)b)", {"types": Texts(sorted(jobs.types))}
    if jobs.labels:
        name, value = next(iter(jobs.labels.items()))
        labels = {"labels": Jsonb(dict(jobs.labels)), "label_name": name, "label_value": value}
        yield "j.labels @> %(labels)s", labels
    if jobs.schedule_id is not None:
        yield "j.schedule_id = %(schedule_id)s", {"schedule_id": jobs.schedule_id}
    if jobs.redriven is not None:
        yield f"j.redrive_id IS {'NOT ' if jobs.redriven else ''}NULL", {}


def _by_time(jobs: JobFilter, before: UUID | None) -> Iterator[Condition]:
    if jobs.created_after is not None:
        first_id = first_id_at(_milliseconds(jobs.created_after) - _SKEW_MS)
        yield "j.create_time >= %(created_after)s", {"created_after": jobs.created_after}
        yield "j.id >= %(first_id)s", {"first_id": first_id}
    if jobs.created_before is not None:
        last_id = first_id_at(_milliseconds(jobs.created_before) + _SKEW_MS)
        yield "j.create_time < %(created_before)s", {"created_before": jobs.created_before}
        before = last_id if before is None else min(before, last_id)
    if before is not None:
        yield "j.id < %(before)s", {"before": before}


def _numbers(states: Iterable[JobState]) -> str:
    return ", ".join(str(int(state)) for state in sorted(states))


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
