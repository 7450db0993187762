"""Transport: unpack, call one use case, pack. One module per group of RPCs.

RPCs that no module overrides would answer UNIMPLEMENTED with the reason NOT_IMPLEMENTED.
"""

from __future__ import annotations

from jobmesh.v1 import enqueue_service_pb2_grpc as rpc

from services.enqueue.servicer.changes import ChangeCalls
from services.enqueue.servicer.explaining import ExplainCalls
from services.enqueue.servicer.jobs import JobCalls
from services.enqueue.servicer.logs import LogCalls
from services.enqueue.servicer.objects import ObjectCalls
from services.enqueue.servicer.schedules import ScheduleCalls
from services.enqueue.servicer.streams import StreamCalls
from services.enqueue.servicer.types import TypeCalls


class EnqueueServicer(
    JobCalls,
    StreamCalls,
    ChangeCalls,
    ExplainCalls,
    ObjectCalls,
    LogCalls,
    ScheduleCalls,
    TypeCalls,
    rpc.EnqueueServiceServicer,
):
    """The RPCs of Enqueue."""


__all__ = ["EnqueueServicer"]
