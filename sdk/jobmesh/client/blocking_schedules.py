"""The blocking twin of `schedules`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from jobmesh.client.schedules import UNCHANGED, AsyncSchedules
from jobmesh.client.timing import ScheduleOptions, Timing
from jobmesh.model import Backfill, Job, Schedule, SchedulePreview

if TYPE_CHECKING:
    from jobmesh.client.blocking import LoopThread
    from jobmesh.handlers import JobFunction


class Schedules:
    """`client.schedules`. The blocking twin of AsyncSchedules."""

    def __init__(self, thread: LoopThread, schedules: AsyncSchedules) -> None:
        self._thread = thread
        self._schedules = schedules

    def create(
        self,
        name: str,
        type: str | JobFunction[..., Any],
        input: Any = None,
        *,
        namespace: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Stores a schedule. The same name and content again returns the existing one."""
        return self._thread.run(
            self._schedules.create(name, type, input, namespace=namespace, **options)
        )

    def update(
        self,
        name: str,
        *,
        input: Any = UNCHANGED,
        etag: str = "",
        allow_many: bool = False,
        namespace: str | None = None,
        **changes: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Changes what is said and nothing else; jobs that were made are not touched."""
        return self._thread.run(
            self._schedules.update(
                name,
                input=input,
                etag=etag,
                allow_many=allow_many,
                namespace=namespace,
                **changes,
            )
        )

    def trigger(self, name: str, *, namespace: str | None = None) -> Job:
        """Makes one job now, whatever the time, a pause or an earlier run. Never sent twice."""
        return self._thread.run(self._schedules.trigger(name, namespace=namespace))

    def preview(
        self,
        name: str = "",
        *,
        after: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10,
        namespace: str | None = None,
        **proposed: Unpack[Timing],
    ) -> SchedulePreview:
        """When the schedule of that name, or one as proposed, is going to run."""
        return self._thread.run(
            self._schedules.preview(
                name, after=after, until=until, limit=limit, namespace=namespace, **proposed
            )
        )

    def backfill(
        self,
        name: str,
        after: datetime,
        until: datetime,
        *,
        allow_many: bool = False,
        namespace: str | None = None,
    ) -> Backfill:
        """Makes the jobs of past nominal times in `[after, until)` that made none."""
        return self._thread.run(
            self._schedules.backfill(name, after, until, allow_many=allow_many, namespace=namespace)
        )

    def get(self, name: str, *, namespace: str | None = None) -> Schedule:
        return self._thread.run(self._schedules.get(name, namespace=namespace))

    def list(self, *, namespace: str | None = None) -> Iterator[Schedule]:
        """All schedules, by name."""
        return self._thread.iterate(self._schedules.list(namespace=namespace))

    def pause(self, name: str, *, note: str = "", namespace: str | None = None) -> Schedule:
        """It makes no more jobs until it is resumed."""
        return self._thread.run(self._schedules.pause(name, note=note, namespace=namespace))

    def resume(self, name: str, *, namespace: str | None = None) -> Schedule:
        return self._thread.run(self._schedules.resume(name, namespace=namespace))

    def delete(self, name: str, *, namespace: str | None = None) -> None:
        """Removes the schedule; jobs it has made are not touched."""
        self._thread.run(self._schedules.delete(name, namespace=namespace))
