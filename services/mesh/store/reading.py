"""Reading jobs and events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from services.mesh.jobs.model import EventFilter, JobEvent, JobFilter, JobRecord, Position
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import Ends, EventPage
from services.mesh.store.arrays import Integers, Keys, Uuids
from services.mesh.store.base import Int8, ShardBase
from services.mesh.store.connection import Row
from services.mesh.store.listing import (
    FEW,
    count_query,
    list_query,
    living_query,
    match_query,
)
from services.mesh.store.order import APART, EDGE, LAST, MARGIN, Edge, Standing, exchanged
from services.mesh.store.rows import STATES, job_event, job_record


class Reading(ShardBase):
    """Reads jobs and events."""

    async def get_jobs(self, ids: Sequence[UUID], payloads: bool = False) -> list[JobRecord]:
        """The jobs that exist, in no particular order."""
        name = "get_full_jobs" if payloads else "get_jobs"
        rows = await self._fetch(name, {"ids": Uuids(list(set(ids)))})
        return [job_record(row) for row in rows]

    async def list_jobs(
        self, jobs: JobFilter, before: UUID | None, limit: int, payloads: bool = False
    ) -> list[JobRecord]:
        """A page of jobs, newest first."""
        few = await self._are_few(jobs)
        query, params = list_query(self._queries, jobs, before, limit, payloads, few)
        return [job_record(row) for row in await self._connections.fetch(query, params)]

    async def match_jobs(self, jobs: JobFilter, before: UUID | None, limit: int) -> list[UUID]:
        """A page of ids, newest first."""
        query, params = match_query(jobs, before, limit, await self._are_few(jobs))
        return [row[0] for row in await self._connections.fetch(query, params)]

    async def count_jobs(self, jobs: JobFilter) -> dict[JobState, int]:
        """How many jobs are in each state that has some."""
        query, params = count_query(jobs, await self._are_few(jobs))
        return {STATES[row[0]]: row[1] for row in await self._connections.fetch(query, params)}

    async def _are_few(self, jobs: JobFilter) -> bool:
        """Whether the states asked for are live ones, and few jobs have them."""
        query = living_query(jobs)
        if query is None:
            return False
        ((count,),) = await self._connections.fetch(query)
        return bool(count <= FEW)

    async def versions(self, ids: Sequence[UUID]) -> dict[UUID, int]:
        """The newest version of each job that exists."""
        return dict(await self._fetch("versions", {"ids": Uuids(list(set(ids)))}))

    async def events_after(
        self, cursors: Sequence[tuple[UUID, int]], limit: int = 10_000
    ) -> list[JobEvent]:
        """The events of jobs after `(job id, version)`, by job and version."""
        params = {
            "ids": Uuids([job_id for job_id, _ in cursors]),
            "versions": Integers([version for _, version in cursors]),
            "limit": Int8(limit),
        }
        return [job_event(row) for row in await self._fetch("events_after", params)]

    async def ends(self, keys: Sequence[bytes], namespace: str | None = None) -> Ends:
        """The transitions that ended jobs, and which of them do not exist."""
        wanted = set(keys)
        rows = await self._fetch("ends", {"ids": Keys(list(wanted)), "namespace": namespace})
        unknown: set[bytes] = set()
        if rows[0][0] < len(wanted):
            ids = Uuids([UUID(bytes=key) for key in wanted])
            found = await self._fetch("states", {"ids": ids, "namespace": namespace})
            unknown = wanted - {row[0].bytes for row in found}
        return Ends([job_event(row[1:]) for row in rows if row[1] is not None], sorted(unknown))

    async def events_since(
        self, after: Position | None, limit: int, wanted: EventFilter | None = None
    ) -> EventPage:
        """The shard's events after a position; None begins at the horizon, with no events."""
        if after is None:
            edge = Edge(*(await self._fetch("horizon"))[0])
            return EventPage([], edge.horizon, False, False, edge.next_xid, edge.lasting)
        first = after.xid + (1 if after.number >= LAST else 0)
        found = await self._fetch("events_since", {"xid": str(first), "limit": Int8(limit)})
        edge, rows = Edge(*found[0][:EDGE]), [row[EDGE:] for row in found]
        sizes = {row[0]: row[1] for row in rows if row[0] is not None}
        # Whole transactions until there are enough events: the next page begins after the last.
        more = sum(sizes.values()) >= limit
        cut = more or edge.overtaken or 0 < after.number < APART
        events = await self._in_order(rows, cut=cut)
        full = Position(max(sizes), LAST) if more else None
        return EventPage(
            [e for place, e in events if place > after and (not wanted or wanted.matches(e))],
            full or max(after, edge.horizon),
            more=more,
            truncated=edge.purged > 0 and after < Position(edge.purged, LAST),
            next_xid=edge.next_xid,
            lasting=full or max(after, edge.lasting),
        )

    async def _in_order(
        self, rows: Iterable[Row], *, cut: bool
    ) -> Iterable[tuple[Position, JobEvent]]:
        """Events with their places. `cut`: what belongs together may stand on both sides of one of
        the page's edges.
        """
        places = [(Position(row[0], row[2]), row) for row in rows if row[2] is not None]
        order = [(place, row[3], row[4]) for place, row in places]
        if cut and order:
            order = sorted(order + await self._around(order))
        others = exchanged(order)
        if not others:
            return ((place, job_event(row[3:], place)) for place, row in places)
        here = {(row[3], row[4]): job_event(row[3:]) for _, row in places}
        away = [(job_id, version - 1) for job_id, version in others.values()]
        here |= {(e.job_id, e.version): e for e in await self.events_after(away)}
        belongs = {place: others.get(place, (row[3], row[4])) for place, row in places}
        return ((p, replace(here[e], position=p)) for p, e in belongs.items() if e in here)

    async def _around(self, order: Sequence[Standing]) -> list[Standing]:
        """What else stands just before and behind, of jobs whose versions are not in order."""
        ids = list({job_id for _, job_id, _ in order})
        crossed = [row[0] for row in await self._fetch("crossed", {"ids": Uuids(ids)})]
        if not crossed:
            return []
        first, last = order[0][0].xid, order[-1][0].xid
        params = {
            "ids": Uuids(crossed),
            "first": str(max(0, first - MARGIN)),
            "last": str(last + MARGIN),
        }
        rows = await self._fetch("order_around", params)
        return [(Position(*row[:2]), *row[2:]) for row in rows if not first <= row[0] <= last]
