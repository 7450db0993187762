"""Versions of a job that stand the wrong way round in its shard's order.

Transactions are ordered by number, and one may take its number before another and wait for it at a
row: then the later version stands before the earlier. Whoever sees one sees both, for who waited
commits last. A reader exchanges the two: the earlier version counts as standing at the earlier
place. Whoever resumes between the places does the same, so nothing is lost or repeated. The horizon
may be between the two, where a third transaction is open; not where nobody has overtaken that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from services.mesh.jobs.model import Position

#: Stands behind every event of a transaction.
LAST = 1 << 40
#: The same, where no versions that belong together stand on both sides.
APART = LAST + 1
#: So many transactions may take their numbers while one is on its way to a row.
MARGIN = 1000

Standing = tuple[Position, UUID, int]
"""A place, and the version of a job that stands there."""


class Edge(NamedTuple):
    """How far a shard's order can be read, as its statements say it."""

    xid: int
    """The oldest transaction that is open."""
    purged: int
    next_xid: int
    last_xid: int
    """The last one before it that wrote events."""
    overtaken: bool
    """Whether some wrote events behind it."""

    @property
    def horizon(self) -> Position:
        """Whatever will be written stands behind it, unless the server crashes."""
        return Position(self.xid, 0)

    @property
    def lasting(self) -> Position:
        """The same place by what is on disk: numbers before it are not given out again."""
        return Position(self.last_xid, LAST if self.overtaken else APART)


EDGE = len(Edge._fields)


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
