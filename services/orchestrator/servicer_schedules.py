"""Transport of the RPCs about schedules."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc.aio
from jobmesh.v1 import job_pb2, schedule_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.errors import InvalidField
from services.mesh.jobs.schedules import Definition, ScheduleRecord
from services.mesh.rpc import Rules
from services.mesh.wire.jobs import job_to_proto
from services.mesh.wire.masks import merge
from services.mesh.wire.schedules import (
    clock_change_to_proto,
    definition_from_proto,
    new_schedule_from_proto,
    schedule_to_proto,
    timestamps,
)
from services.mesh.wire.values import optional_datetime
from services.orchestrator import convert
from services.orchestrator.app.schedules import Schedules

Context = grpc.aio.ServicerContext[Any, Any]
Schedule = schedule_pb2.Schedule


class ScheduleCalls:
    """The RPCs about schedules."""

    _schedules: Schedules
    _rules: Rules

    async def PutSchedule(
        self, request: pb.PutScheduleRequest, context: Context
    ) -> pb.PutScheduleResponse:
        build = partial(new_schedule_from_proto, request.schedule, request.namespace)
        name = request.schedule.name
        record = await self._schedules.create(request.namespace, name, build)
        return pb.PutScheduleResponse(schedule=schedule_to_proto(record))

    async def GetSchedule(
        self, request: pb.OrchestratorServiceGetScheduleRequest, context: Context
    ) -> pb.OrchestratorServiceGetScheduleResponse:
        record = await self._schedules.get(request.namespace, request.name)
        return pb.OrchestratorServiceGetScheduleResponse(schedule=schedule_to_proto(record))

    async def ListSchedules(
        self, request: pb.OrchestratorServiceListSchedulesRequest, context: Context
    ) -> pb.OrchestratorServiceListSchedulesResponse:
        page = await self._schedules.page(request.namespace, request.after_name, request.page_size)
        # Inputs may be large: as many as one answer holds.
        schedules = convert.first_of(schedule_to_proto(record) for record in page.schedules)
        return pb.OrchestratorServiceListSchedulesResponse(
            schedules=schedules,
            more=page.more or len(schedules) < len(page.schedules),
            missing_shards=page.missing,
        )

    async def UpdateSchedule(
        self, request: pb.OrchestratorServiceUpdateScheduleRequest, context: Context
    ) -> pb.OrchestratorServiceUpdateScheduleResponse:
        record = await self._schedules.update(
            request.namespace,
            request.schedule.name,
            request.schedule.etag,
            partial(self._edited, request),
            allow_many=request.allow_many,
        )
        return pb.OrchestratorServiceUpdateScheduleResponse(schedule=schedule_to_proto(record))

    async def PauseSchedule(
        self, request: pb.OrchestratorServicePauseScheduleRequest, context: Context
    ) -> pb.OrchestratorServicePauseScheduleResponse:
        record = await self._schedules.pause(
            request.namespace, request.name, request.paused, request.note
        )
        return pb.OrchestratorServicePauseScheduleResponse(schedule=schedule_to_proto(record))

    async def DeleteSchedule(
        self, request: pb.OrchestratorServiceDeleteScheduleRequest, context: Context
    ) -> pb.OrchestratorServiceDeleteScheduleResponse:
        await self._schedules.delete(request.namespace, request.name)
        return pb.OrchestratorServiceDeleteScheduleResponse()

    async def TriggerSchedule(
        self, request: pb.OrchestratorServiceTriggerScheduleRequest, context: Context
    ) -> pb.OrchestratorServiceTriggerScheduleResponse:
        shard, job = await self._schedules.trigger(request.namespace, request.name)
        return pb.OrchestratorServiceTriggerScheduleResponse(job=job_to_proto(job, shard))

    async def PreviewSchedule(
        self, request: pb.OrchestratorServicePreviewScheduleRequest, context: Context
    ) -> pb.OrchestratorServicePreviewScheduleResponse:
        found = await self._schedules.preview(
            request.namespace,
            self._proposed(request.schedule),
            optional_datetime(request, "from"),
            optional_datetime(request, "until"),
            request.limit,
        )
        return pb.OrchestratorServicePreviewScheduleResponse(
            times=timestamps(found.times),
            clock_changes=[clock_change_to_proto(change) for change in found.changes],
            more=found.more,
        )

    async def BackfillSchedule(
        self, request: pb.OrchestratorServiceBackfillScheduleRequest, context: Context
    ) -> pb.OrchestratorServiceBackfillScheduleResponse:
        first, until = optional_datetime(request, "from"), optional_datetime(request, "until")
        assert first is not None
        assert until is not None
        done = await self._schedules.backfill(
            request.namespace, request.name, first, until, allow_many=request.allow_many
        )
        return pb.OrchestratorServiceBackfillScheduleResponse(
            count=done.made, waiting=done.waiting, left_out=done.left_out
        )

    def _edited(
        self, request: pb.OrchestratorServiceUpdateScheduleRequest, known: ScheduleRecord
    ) -> Definition:
        """The fields of the mask over what is there; the whole must be as the contract says."""
        message = schedule_to_proto(known)
        merge(request.schedule, message, request.update_mask)
        self._check(message)
        return definition_from_proto(message)

    def _proposed(self, message: Schedule) -> Definition | str:
        """A name alone is that of a schedule; with rules it is a proposal, template or not."""
        if not message.recurrences:
            if not message.name:
                raise InvalidField("schedule", "give a name, or recurrences")
            return message.name
        whole = Schedule(name="proposed", template=job_pb2.JobSpec(type="any"))
        whole.MergeFrom(message)
        self._check(whole)
        return definition_from_proto(whole)

    def _check(self, message: Schedule) -> None:
        if broken := self._rules.violations(message, "schedule"):
            raise InvalidField.of(broken)
