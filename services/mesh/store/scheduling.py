"""Schedules: kept beside the jobs they make."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from services.mesh.jobs.planning import first_time, resumed_time
from services.mesh.jobs.schedules import (
    Definition,
    NewSchedule,
    SchedulePut,
    ScheduleRecord,
)
from services.mesh.store.base import Int8
from services.mesh.store.connection import Session
from services.mesh.store.definitions import definition_to_json
from services.mesh.store.firing import Firing, schedule_record


class Scheduling(Firing):
    """Keeps schedules."""

    async def put_schedule(
        self, schedule: NewSchedule, replace: bool = False, version: int | None = None
    ) -> tuple[SchedulePut, ScheduleRecord | None]:
        """Create a schedule, or replace its definition."""
        name = {"namespace": schedule.namespace, "name": schedule.name}
        async with self._connections.transaction() as session:
            known, now = await self._locked(session, schedule.namespace, schedule.name)
            refusal = _refusal(known, replace, version)
            if refusal is not None:
                return refusal, known
            if known is None:
                query = self._queries["insert_schedule"]
                params = name | _params(schedule.definition, schedule.paused, "")
                params |= {"id": schedule.id, "next_time": first_time(schedule.definition, now)}
            else:
                query = self._queries["update_schedule"]
                params = name | _params(schedule.definition, known.paused, known.pause_note)
                params["next_time"] = _next_time(known, schedule.definition, now)
                params["open_jobs"] = await self._followed(session, known, schedule.definition)
            rows = await self._connections.run(session, query, params)
        if not rows:  # somebody else created it between the two statements
            return SchedulePut.EXISTS, await self.get_schedule(schedule.namespace, schedule.name)
        outcome = SchedulePut.CREATED if known is None else SchedulePut.REPLACED
        return outcome, schedule_record(rows[0])

    async def get_schedule(self, namespace: str, name: str) -> ScheduleRecord | None:
        """One schedule, None if there is none."""
        rows = await self._fetch("get_schedule", {"namespace": namespace, "name": name})
        return schedule_record(rows[0]) if rows else None

    async def list_schedules(self, namespace: str, after: str, limit: int) -> list[ScheduleRecord]:
        """A page of schedules by name."""
        params = {"namespace": namespace, "after": after, "limit": Int8(limit)}
        return [schedule_record(row) for row in await self._fetch("list_schedules", params)]

    async def pause_schedule(
        self, namespace: str, name: str, paused: bool, note: str = ""
    ) -> ScheduleRecord | None:
        """Pause or resume. Nominal times that pass during a pause are left out, not caught up."""
        names = {"namespace": namespace, "name": name}
        async with self._connections.transaction() as session:
            known, now = await self._locked(session, namespace, name)
            if known is None or known.paused == paused:
                return known
            resumed = known.paused and known.next_time is not None
            params = names | _params(known.definition, paused, note if paused else "")
            params["next_time"] = first_time(known.definition, now) if resumed else known.next_time
            params["open_jobs"] = list(known.open_jobs)
            if known.paused and known.definition.follows_runs:
                # Runs that failed before it was resumed are not held against it.
                params["open_jobs"] = await self._open_jobs(session, known)
            query = self._queries["update_schedule"]
            rows = await self._connections.run(session, query, params)
        return schedule_record(rows[0])

    async def delete_schedule(self, namespace: str, name: str) -> bool:
        """Delete a schedule; False if there was none."""
        params = {"namespace": namespace, "name": name}
        return bool(await self._fetch("delete_schedule", params))

    async def _followed(
        self, session: Session, known: ScheduleRecord, definition: Definition
    ) -> list[UUID]:
        """The runs that matter under a new definition: it may be the first to ask."""
        if not definition.follows_runs or known.definition.follows_runs:
            return list(known.open_jobs) if definition.follows_runs else []
        return await self._open_jobs(session, known)

    async def _open_jobs(self, session: Session, known: ScheduleRecord) -> list[UUID]:
        if known.runs == 0:
            return []
        query = self._queries["open_jobs"]
        rows = await self._connections.run(session, query, {"schedule": known.id})
        return [row[0] for row in rows]


def _next_time(known: ScheduleRecord, definition: Definition, now: datetime) -> datetime | None:
    if definition.max_runs and known.runs >= definition.max_runs:
        return None
    return resumed_time(known, definition, now)


def _refusal(
    known: ScheduleRecord | None, replace: bool, version: int | None
) -> SchedulePut | None:
    if known is None:
        return None if version is None else SchedulePut.NOT_FOUND
    if not replace:
        return SchedulePut.EXISTS
    if version is not None and version != known.version:
        return SchedulePut.ETAG_MISMATCH
    return None


def _params(definition: Definition, paused: bool, note: str) -> dict[str, object]:
    return {
        "definition": definition_to_json(definition),
        "input": definition.template.input.data,
        "paused": paused,
        "pause_note": note,
    }
