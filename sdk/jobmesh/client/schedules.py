"""Schedules: definitions that make one job per nominal time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack, cast

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from jobmesh.client.convert import to_datetime, to_job, to_schedule, to_timestamp
from jobmesh.client.session import Session
from jobmesh.client.submission import to_spec
from jobmesh.client.timing import (
    RULES,
    TIMING,
    ScheduleOptions,
    Timing,
    apply_move,
    apply_timing,
    moves,
    zone_of,
)
from jobmesh.model import Backfill, ClockChange, Job, Schedule, SchedulePreview
from jobmesh.options import EnqueueOptions, NewJob, new_job
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import schedule_pb2
from jobmesh.v1.payload_pb2 import Payload

if TYPE_CHECKING:
    from jobmesh.handlers import JobFunction


#: Keywords about the job that an update may change, and the fields they stand for.
_TEMPLATE = {
    "priority": "template.priority",
    "labels": "template.labels",
    "retry": "template.retry_policy",
    "retries": "template.retry_policy",
    "timeout": "template.timeouts.run",
    "start_timeout": "template.timeouts.start",
    "progress_timeout": "template.timeouts.progress",
    "total_timeout": "template.timeouts.total",
    "concurrency_key": "template.concurrency_key",
}
#: The input of an update that does not change it: None is an input, too.
UNCHANGED: Any = object()


class AsyncSchedules:
    """`client.schedules`: create, look at, change, pause, run and delete schedules."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(
        self,
        name: str,
        type: str | JobFunction[..., Any],
        input: Any = None,
        *,
        namespace: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Stores a schedule. The same name and content again returns the existing one."""
        timing, job = _parted(options)
        if not RULES & timing.keys():
            raise ValueError("give every or cron, or both")
        if job.get("idempotency_key") is not None:
            raise ValueError("a schedule has no idempotency_key: its name makes a repetition safe")
        message = schedule_pb2.Schedule(name=name)
        apply_timing(message, timing)
        new, space = new_job(type, input, job), self._session.namespace(namespace)
        message.template.CopyFrom(to_spec(new, await self._session.payload(new, space)))
        request = pb.CreateScheduleRequest(namespace=space, schedule=message)
        answer = await self._session.call(self._session.stub.CreateSchedule, request)
        return to_schedule(answer.schedule)

    async def update(
        self,
        name: str,
        *,
        input: Any = UNCHANGED,
        etag: str = "",
        allow_many: bool = False,
        namespace: str | None = None,
        **changes: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Changes what is said and nothing else; jobs that were made are not touched.

        With `etag`, only if nobody changed it since. `allow_many` is asked for when the change
        makes many jobs at once. New cron rules are in the zone of the old ones, unless they say
        another; `time_zone` without new rules is the new zone of the old ones.
        """
        timing, job = _parted(changes)
        space = self._session.namespace(namespace)
        message = schedule_pb2.Schedule(name=name, etag=etag)
        paths = await self._apply_timing(message, timing, space) + _template_paths(job, input)
        new, payload = NewJob("any", None if input is UNCHANGED else input, **job), Payload()
        if input is not UNCHANGED:
            payload = await self._session.payload(new, space)
        message.template.CopyFrom(to_spec(new, payload))
        request = pb.UpdateScheduleRequest(
            namespace=space,
            schedule=message,
            update_mask=FieldMask(paths=paths),
            allow_many=allow_many,
        )
        update = self._session.stub.UpdateSchedule
        answer = await self._session.call(update, request, repeat=not message.etag)
        return to_schedule(answer.schedule)

    async def _apply_timing(
        self, message: schedule_pb2.Schedule, timing: Timing, namespace: str
    ) -> list[str]:
        """Fill in what changes, with what is known where it goes by that; the fields."""
        if moves(timing):
            known = await self._message(message.name, namespace)
            # Its rules are said again, so nobody may have changed them since.
            message.etag = message.etag or known.etag
            return apply_move(message, timing, known)
        if _lacks_zone(timing):
            known = await self._message(message.name, namespace)
            return apply_timing(message, timing, zone_of(known))
        return apply_timing(message, timing)

    async def _message(self, name: str, namespace: str) -> schedule_pb2.Schedule:
        found = await self.get(name, namespace=namespace)
        assert isinstance(found.message, schedule_pb2.Schedule)
        return found.message

    async def trigger(self, name: str, *, namespace: str | None = None) -> Job:
        """Makes one job now, whatever the time, a pause or an earlier run. Never sent twice."""
        space = self._session.namespace(namespace)
        request = pb.TriggerScheduleRequest(namespace=space, name=name)
        trigger = self._session.stub.TriggerSchedule
        return to_job((await self._session.call(trigger, request, repeat=False)).job)

    async def preview(
        self,
        name: str = "",
        *,
        after: datetime | None = None,
        until: datetime | None = None,
        limit: int = 10,
        namespace: str | None = None,
        **proposed: Unpack[Timing],
    ) -> SchedulePreview:
        """When the schedule of that name, or one as proposed, is going to run: up to five years,
        at most 10,000 times.
        """
        message = schedule_pb2.Schedule(name=name)
        apply_timing(message, proposed)
        request = pb.PreviewScheduleRequest(
            namespace=self._session.namespace(namespace), schedule=message, limit=limit
        )
        _set_span(request, after, until)
        return to_preview(await self._session.call(self._session.stub.PreviewSchedule, request))

    async def backfill(
        self,
        name: str,
        after: datetime,
        until: datetime,
        *,
        allow_many: bool = False,
        namespace: str | None = None,
    ) -> Backfill:
        """Makes the jobs of past nominal times in `[after, until)` that made none, under the
        overlap policy. Safe to repeat.
        """
        space = self._session.namespace(namespace)
        request = pb.BackfillScheduleRequest(namespace=space, name=name, allow_many=allow_many)
        _set_span(request, after, until)
        answer = await self._session.call(self._session.stub.BackfillSchedule, request)
        return Backfill(answer.count, answer.waiting, answer.left_out)

    async def get(self, name: str, *, namespace: str | None = None) -> Schedule:
        request = pb.GetScheduleRequest(namespace=self._session.namespace(namespace), name=name)
        answer = await self._session.call(self._session.stub.GetSchedule, request)
        return to_schedule(answer.schedule)

    async def list(self, *, namespace: str | None = None) -> AsyncIterator[Schedule]:
        """All schedules, by name."""
        request = pb.ListSchedulesRequest(namespace=self._session.namespace(namespace))
        while True:
            page = await self._session.call(self._session.stub.ListSchedules, request)
            for message in page.schedules:
                yield to_schedule(message)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def pause(self, name: str, *, note: str = "", namespace: str | None = None) -> Schedule:
        """It makes no more jobs until it is resumed."""
        return await self._set_paused(name, True, note, namespace)

    async def resume(self, name: str, *, namespace: str | None = None) -> Schedule:
        return await self._set_paused(name, False, "", namespace)

    async def _set_paused(
        self, name: str, paused: bool, note: str, namespace: str | None
    ) -> Schedule:
        request = pb.PauseScheduleRequest(
            namespace=self._session.namespace(namespace), name=name, paused=paused, note=note
        )
        answer = await self._session.call(self._session.stub.PauseSchedule, request)
        return to_schedule(answer.schedule)

    async def delete(self, name: str, *, namespace: str | None = None) -> None:
        """Removes the schedule; jobs it has made are not touched."""
        space = self._session.namespace(namespace)
        request = pb.DeleteScheduleRequest(namespace=space, name=name)
        await self._session.call(self._session.stub.DeleteSchedule, request)


def _parted(options: ScheduleOptions) -> tuple[Timing, EnqueueOptions]:
    timing = {key: value for key, value in options.items() if key in TIMING}
    job = {key: value for key, value in options.items() if key not in TIMING}
    return cast(Timing, timing), cast(EnqueueOptions, job)


def _lacks_zone(timing: Timing) -> bool:
    """Whether it has cron rules without a word about their zone."""
    return bool(timing.get("cron") or timing.get("exclude")) and "time_zone" not in timing


def _template_paths(job: EnqueueOptions, input: Any) -> list[str]:
    """The fields of the template that an update is about."""
    known = _TEMPLATE if input is UNCHANGED else {**_TEMPLATE, "content_type": "template.input"}
    if unknown := job.keys() - known.keys():
        raise ValueError(f"cannot change {', '.join(sorted(unknown))} of a schedule")
    paths = [known[keyword] for keyword in job]
    return paths if input is UNCHANGED else [*paths, "template.input"]


def _set_span(request: Message, after: datetime | None, until: datetime | None) -> None:
    for field, time in (("from", after), ("until", until)):
        if time is not None:
            getattr(request, field).CopyFrom(to_timestamp(time, field))


def to_preview(message: pb.PreviewScheduleResponse) -> SchedulePreview:
    return SchedulePreview(
        times=tuple(map(to_datetime, message.times)),
        clock_changes=tuple(
            ClockChange(
                time=to_datetime(change.time),
                time_zone=change.time_zone,
                shift=change.shift.ToTimedelta(),
                times=tuple(map(to_datetime, change.times)),
                effect=change.effect,
            )
            for change in message.clock_changes
        ),
        more=message.more,
        message=message,
    )
