"""The statements of lists."""

from __future__ import annotations

from datetime import UTC, datetime

from services.mesh.jobs.ids import first_id_at
from services.mesh.jobs.model import JobFilter
from services.mesh.store.listing import match_query

FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def test_times_at_the_ends_of_the_calendar_bound_nothing():
    jobs = JobFilter("n", created_after=FIRST, created_before=LAST)
    _, params = match_query(jobs, None, 10, few=False)
    assert params["first_id"] == first_id_at(0)
    assert params["before"] > first_id_at(round(LAST.timestamp() * 1000))
