"""The settings of types of the mesh in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.errors import EtagMismatch
from services.mesh.wire.type_settings import ASKED, asked_by_handler

if TYPE_CHECKING:
    from tests.unit.sdk.memory_mesh import Fault


class MemoryTypes:
    """The RPCs about settings; an etag counts the changes."""

    def __init__(self) -> None:
        super().__init__()
        self.type_settings: dict[str, TypeSettings] = {}

    if TYPE_CHECKING:

        async def _begin(self, method: str, request: Any, context: Any) -> Fault | None: ...

        async def _end(self, fault: Fault | None, context: Any) -> None: ...

        async def _abort(self, context: Any, error: Any) -> None: ...

    async def GetTypeSettings(
        self, request: pb.GetTypeSettingsRequest, context: Any
    ) -> pb.GetTypeSettingsResponse:
        await self._begin("GetTypeSettings", request, context)
        known = self.type_settings.get(request.type, TypeSettings(type=request.type))
        return pb.GetTypeSettingsResponse(settings=known)

    async def SetTypeSettings(
        self, request: pb.SetTypeSettingsRequest, context: Any
    ) -> pb.SetTypeSettingsResponse:
        fault = await self._begin("SetTypeSettings", request, context)
        given = request.settings
        known = self.type_settings.get(given.type, TypeSettings())
        if given.etag and given.etag != known.etag:
            await self._abort(context, EtagMismatch("settings of type", given.type))
        given.etag = str(int(known.etag or 0) + 1)
        for field in ASKED:
            given.ClearField(field)  # type: ignore[arg-type]
        given.MergeFrom(asked_by_handler(known))
        self.type_settings[given.type] = given
        await self._end(fault, context)
        return pb.SetTypeSettingsResponse(settings=given)
