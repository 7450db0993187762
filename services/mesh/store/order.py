"""Versions of a job that stand the wrong way round in its shard's order.

Transactions are ordered by number, and one may take its number before another and wait for it at a
row: then the later version stands before the earlier. Both are below the horizon as soon as one is,
for who waited commits last. A reader exchanges the two: the earlier version counts as standing at
the earlier place. Whoever resumes between the places does the same, so nothing is lost or repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from services.mesh.jobs.model import Position

#: Stands behind every event of a transaction.
LAST = 1 << 40
#: So many transactions may take their numbers while one is on its way to a row.
MARGIN = 1000

Standing = tuple[Position, UUID, int]
"""A place, and the version of a job that stands there."""


def exchanged(order: Iterable[Standing]) -> dict[Position, tuple[UUID, int]]:
    """Which version belongs to a place, where that is another than the one that stands there.

    `order` goes by place, and may name a place twice.
    """
    order = list(order)
    newest: dict[UUID, int] = {}
    wrong: set[UUID] = set()
    for _, job_id, version in order:
        known = newest.get(job_id, 0)
        if version < known:
            wrong.add(job_id)
        else:
            newest[job_id] = version
    if not wrong:
        return {}
    found: dict[Position, tuple[UUID, int]] = {}
    for job_id in wrong:
        stands = {place: version for place, its, version in order if its == job_id}
        places = sorted(stands)
        for place, version in zip(places, sorted(stands.values()), strict=True):
            if stands[place] != version:
                found[place] = (job_id, version)
    return found
