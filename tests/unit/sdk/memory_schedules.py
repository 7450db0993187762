"""The schedules of the mesh in memory. They make no jobs: clients only talk about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1.schedule_pb2 import Schedule

from services.mesh.errors import ScheduleExists, ScheduleNotFound
from services.mesh.wire.masks import merge

if TYPE_CHECKING:
    from tests.unit.sdk.memory_mesh import Fault

PAGE = 2


class MemorySchedules:
    """The RPCs about schedules."""

    def __init__(self) -> None:
        self.schedules: dict[str, Schedule] = {}

    if TYPE_CHECKING:

        async def _begin(self, method: str, request: Any, context: Any) -> Fault | None: ...

        async def _end(self, fault: Fault | None, context: Any) -> None: ...

        async def _abort(self, context: Any, error: Any) -> None: ...

    async def CreateSchedule(
        self, request: pb.CreateScheduleRequest, context: Any
    ) -> pb.CreateScheduleResponse:
        fault = await self._begin("CreateSchedule", request, context)
        name = request.schedule.name
        known = self.schedules.get(name)
        if known is not None and known.template != request.schedule.template:
            await self._abort(context, ScheduleExists(name))
        if known is None:
            known = self.schedules[name] = request.schedule
            known.next_time.FromDatetime(datetime(2030, 1, 1, tzinfo=UTC))
        await self._end(fault, context)
        return pb.CreateScheduleResponse(schedule=known)

    async def GetSchedule(
        self, request: pb.GetScheduleRequest, context: Any
    ) -> pb.GetScheduleResponse:
        return pb.GetScheduleResponse(schedule=await self._schedule(request.name, context))

    async def ListSchedules(
        self, request: pb.ListSchedulesRequest, context: Any
    ) -> pb.ListSchedulesResponse:
        found = [self.schedules[name] for name in sorted(self.schedules)]
        start = int(request.page_token or 0)
        more = start + PAGE < len(found)
        return pb.ListSchedulesResponse(
            schedules=found[start : start + PAGE],
            next_page_token=str(start + PAGE) if more else "",
        )

    async def PauseSchedule(
        self, request: pb.PauseScheduleRequest, context: Any
    ) -> pb.PauseScheduleResponse:
        schedule = await self._schedule(request.name, context)
        schedule.paused, schedule.pause_note = request.paused, request.note
        return pb.PauseScheduleResponse(schedule=schedule)

    async def UpdateSchedule(
        self, request: pb.UpdateScheduleRequest, context: Any
    ) -> pb.UpdateScheduleResponse:
        await self._begin("UpdateSchedule", request, context)
        schedule = await self._schedule(request.schedule.name, context)
        merge(request.schedule, schedule, request.update_mask)
        return pb.UpdateScheduleResponse(schedule=schedule)

    async def TriggerSchedule(
        self, request: pb.TriggerScheduleRequest, context: Any
    ) -> pb.TriggerScheduleResponse:
        fault = await self._begin("TriggerSchedule", request, context)
        schedule = await self._schedule(request.name, context)
        job = job_pb2.Job(id="made", spec=schedule.template, schedule=schedule.name)
        await self._end(fault, context)
        return pb.TriggerScheduleResponse(job=job)

    async def PreviewSchedule(
        self, request: pb.PreviewScheduleRequest, context: Any
    ) -> pb.PreviewScheduleResponse:
        await self._begin("PreviewSchedule", request, context)
        first, day = 1_806_111_000, 86_400  # 02:30 in Berlin on 2027-03-27, and the days after
        times = [Timestamp(seconds=first + n * day) for n in range(request.limit)]
        change = {"time": {"seconds": first + day}, "time_zone": "Europe/Berlin"}
        change |= {"shift": {"seconds": 3600}, "times": times[1:2], "effect": "runs at 03:00"}
        return pb.PreviewScheduleResponse(times=times, clock_changes=[change], more=True)

    async def BackfillSchedule(
        self, request: pb.BackfillScheduleRequest, context: Any
    ) -> pb.BackfillScheduleResponse:
        await self._begin("BackfillSchedule", request, context)
        await self._schedule(request.name, context)
        return pb.BackfillScheduleResponse(count=24, waiting=2, left_out=1)

    async def DeleteSchedule(
        self, request: pb.DeleteScheduleRequest, context: Any
    ) -> pb.DeleteScheduleResponse:
        self.schedules.pop(request.name, None)
        return pb.DeleteScheduleResponse()

    async def _schedule(self, name: str, context: Any) -> Schedule:
        if name not in self.schedules:
            await self._abort(context, ScheduleNotFound(name))
        return self.schedules[name]
