"""Types: which there are, and what holds for all jobs of one."""

from __future__ import annotations

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, type_settings_pb2

from services.enqueue import convert
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.wire.type_settings import settings_message


class TypeCalls:
    """The RPCs about types."""

    _desk: Desk

    async def ListTypes(
        self, request: pb.ListTypesRequest, context: Context
    ) -> pb.ListTypesResponse:
        return pb.ListTypesResponse(types=self._desk.types.names())

    async def GetTypeSettings(
        self, request: pb.GetTypeSettingsRequest, context: Context
    ) -> pb.GetTypeSettingsResponse:
        entry = await self._desk.settings_store.get(request.type)
        if entry is None:
            settings = type_settings_pb2.TypeSettings(type=request.type)
        else:
            settings = settings_message(entry)
        return pb.GetTypeSettingsResponse(settings=settings)

    async def SetTypeSettings(
        self, request: pb.SetTypeSettingsRequest, context: Context
    ) -> pb.SetTypeSettingsResponse:
        given = request.settings
        # Jobs are going to say the same: what they may not, their type may not either.
        spec = job_pb2.JobSpec(type=given.type, timeouts=given.timeouts)
        convert.check_spec(spec, self._desk.clock.now())
        kept = type_settings_pb2.TypeSettings()
        kept.CopyFrom(given)
        kept.ClearField("etag")
        kept.ClearField("type")
        value = kept.SerializeToString(deterministic=True)
        entry = await self._desk.settings_store.set(given.type, value, given.etag)
        self._desk.settings.learn(entry)
        return pb.SetTypeSettingsResponse(settings=settings_message(entry))
