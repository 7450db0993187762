"""Types: which there are, and what holds for all jobs of one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, type_settings_pb2

from services.enqueue import convert
from services.enqueue.servicer.desk import Context, Desk
from services.mesh.lease import Entry
from services.mesh.wire.type_settings import settings_message, settings_value


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
        store = self._desk.settings_store
        entry = await store.set(given.type, partial(_value, given), given.etag)
        self._desk.settings.learn(entry)
        return pb.SetTypeSettingsResponse(settings=settings_message(entry))


def _value(given: type_settings_pb2.TypeSettings, stands: Entry | None) -> bytes:
    """All that was given, but of the handler's word the one that stands."""
    asked = type_settings_pb2.TypeSettings()
    with suppress(ValueError):  # nothing of ours: to be replaced
        asked = asked if stands is None else settings_message(stands)
    return settings_value(given, asked)
