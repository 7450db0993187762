"""FailpointService: arms the places at which tests strike a process. Transport only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobmesh.v1 import failpoint_service_pb2 as pb
from jobmesh.v1.failpoint_service_pb2_grpc import (
    FailpointServiceServicer,
    add_FailpointServiceServicer_to_server,
)

from services.mesh.failpoints import Failpoints, PointView

if TYPE_CHECKING:
    from services.mesh.rpc.server import Server


def serve_failpoints(server: Server, failpoints: Failpoints) -> None:
    """Serve the failpoints of a process that has some."""
    server.add(add_FailpointServiceServicer_to_server, FailpointServicer(failpoints))


class FailpointServicer(FailpointServiceServicer):
    """The RPCs."""

    def __init__(self, failpoints: Failpoints) -> None:
        self._failpoints = failpoints

    async def Arm(self, request: pb.ArmRequest, context: Any) -> pb.ArmResponse:  # noqa: N802
        self._failpoints.arm(request.name, request.order)
        views = {view.name: view for view in self._failpoints.views()}
        return pb.ArmResponse(failpoint=_to_proto(views[request.name]))

    async def Disarm(self, request: pb.DisarmRequest, context: Any) -> pb.DisarmResponse:  # noqa: N802
        return pb.DisarmResponse(was_armed=self._failpoints.disarm(request.name))

    async def List(  # noqa: N802
        self, request: pb.FailpointServiceListRequest, context: Any
    ) -> pb.FailpointServiceListResponse:
        views = self._failpoints.views()
        return pb.FailpointServiceListResponse(failpoints=[_to_proto(view) for view in views])


def _to_proto(view: PointView) -> pb.Failpoint:
    return pb.Failpoint(
        name=view.name,
        about=view.about,
        target=view.target,
        when=view.when,
        lossy=view.lossy,
        order=view.order,
        hits=view.hits,
        fired=view.fired,
    )
