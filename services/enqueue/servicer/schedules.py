"""Schedules. What they mean is the Orchestrator's affair; their templates are looked at here."""

from __future__ import annotations

from google.protobuf.message import Message
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb

from services.enqueue import convert
from services.enqueue.domain.tokens import page_token, read_page_token
from services.enqueue.edits import checked_paths, touches
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.wire.values import optional_datetime

DEFAULT_PREVIEW = 10


class ScheduleCalls:
    """The RPCs about schedules."""

    _desk: Desk

    async def CreateSchedule(
        self, request: pb.CreateScheduleRequest, context: Context
    ) -> pb.CreateScheduleResponse:
        namespace, schedule = convert.namespace_of(request.namespace), request.schedule
        convert.check_schedule(schedule, self._desk.clock.now())
        await self._desk.check_type(schedule.template.type)
        await self._desk.settle_input(namespace, schedule.template)
        answer = await self._desk.orchestrator.PutSchedule(
            orchestrator_pb.PutScheduleRequest(namespace=namespace, schedule=schedule)
        )
        return pb.CreateScheduleResponse(schedule=answer.schedule)

    async def GetSchedule(
        self, request: pb.GetScheduleRequest, context: Context
    ) -> pb.GetScheduleResponse:
        answer = await self._desk.orchestrator.GetSchedule(
            orchestrator_pb.OrchestratorServiceGetScheduleRequest(
                namespace=convert.namespace_of(request.namespace), name=request.name
            )
        )
        return pb.GetScheduleResponse(schedule=answer.schedule)

    async def ListSchedules(
        self, request: pb.ListSchedulesRequest, context: Context
    ) -> pb.ListSchedulesResponse:
        namespace = convert.namespace_of(request.namespace)
        query = f"schedules of {namespace}".encode()
        answer = await self._desk.orchestrator.ListSchedules(
            orchestrator_pb.OrchestratorServiceListSchedulesRequest(
                namespace=namespace,
                page_size=convert.page_size_of(request.page_size),
                after_name=read_page_token(request.page_token, query),
            )
        )
        return pb.ListSchedulesResponse(
            schedules=answer.schedules,
            next_page_token=page_token(answer.schedules[-1].name, query) if answer.more else "",
            partial=bool(answer.missing_shards),
        )

    async def UpdateSchedule(
        self, request: pb.UpdateScheduleRequest, context: Context
    ) -> pb.UpdateScheduleResponse:
        namespace, schedule = convert.namespace_of(request.namespace), request.schedule
        paths = checked_paths(schedule, request.update_mask)
        if touches(paths, "template"):
            convert.check_template(schedule.template, self._desk.clock.now())
        if touches(paths, "template.type"):
            await self._desk.types.check(schedule.template.type)
        if touches(paths, "template.input"):
            await self._desk.settle_input(namespace, schedule.template)
        answer = await self._desk.orchestrator.UpdateSchedule(
            orchestrator_pb.OrchestratorServiceUpdateScheduleRequest(
                namespace=namespace,
                schedule=schedule,
                update_mask=request.update_mask,
                allow_many=request.allow_many,
            )
        )
        return pb.UpdateScheduleResponse(schedule=answer.schedule)

    async def PauseSchedule(
        self, request: pb.PauseScheduleRequest, context: Context
    ) -> pb.PauseScheduleResponse:
        answer = await self._desk.orchestrator.PauseSchedule(
            orchestrator_pb.OrchestratorServicePauseScheduleRequest(
                namespace=convert.namespace_of(request.namespace),
                name=request.name,
                paused=request.paused,
                note=request.note,
            )
        )
        return pb.PauseScheduleResponse(schedule=answer.schedule)

    async def DeleteSchedule(
        self, request: pb.DeleteScheduleRequest, context: Context
    ) -> pb.DeleteScheduleResponse:
        await self._desk.orchestrator.DeleteSchedule(
            orchestrator_pb.OrchestratorServiceDeleteScheduleRequest(
                namespace=convert.namespace_of(request.namespace), name=request.name
            )
        )
        return pb.DeleteScheduleResponse()

    async def TriggerSchedule(
        self, request: pb.TriggerScheduleRequest, context: Context
    ) -> pb.TriggerScheduleResponse:
        answer = await self._desk.orchestrator.TriggerSchedule(
            orchestrator_pb.OrchestratorServiceTriggerScheduleRequest(
                namespace=convert.namespace_of(request.namespace), name=request.name
            )
        )
        return pb.TriggerScheduleResponse(job=answer.job)

    async def PreviewSchedule(
        self, request: pb.PreviewScheduleRequest, context: Context
    ) -> pb.PreviewScheduleResponse:
        asked = orchestrator_pb.OrchestratorServicePreviewScheduleRequest(
            namespace=convert.namespace_of(request.namespace),
            schedule=request.schedule,
            limit=request.limit or DEFAULT_PREVIEW,
        )
        copy_span(request, asked)
        answer = await self._desk.orchestrator.PreviewSchedule(asked)
        return pb.PreviewScheduleResponse(
            times=answer.times, clock_changes=answer.clock_changes, more=answer.more
        )

    async def BackfillSchedule(
        self, request: pb.BackfillScheduleRequest, context: Context
    ) -> pb.BackfillScheduleResponse:
        asked = orchestrator_pb.OrchestratorServiceBackfillScheduleRequest(
            namespace=convert.namespace_of(request.namespace),
            name=request.name,
            allow_many=request.allow_many,
        )
        copy_span(request, asked)
        answer = await self._desk.orchestrator.BackfillSchedule(asked)
        return pb.BackfillScheduleResponse(
            count=answer.count, waiting=answer.waiting, left_out=answer.left_out
        )


def copy_span(source: Message, target: Message) -> None:
    """`from` is a word of the language, so the fields go by name."""
    for field in ("from", "until"):
        optional_datetime(source, field)  # refuses a time that no calendar has
        if source.HasField(field):
            getattr(target, field).CopyFrom(getattr(source, field))
