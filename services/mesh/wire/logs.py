"""Log lines of attempts."""

from __future__ import annotations

from jobmesh.v1 import enqueue_service_pb2

from services.mesh.jobs.logs import LogLine
from services.mesh.wire.values import set_micros


def log_line_to_proto(line: LogLine, attempt: int, fence: int) -> enqueue_service_pb2.LogLine:
    message = enqueue_service_pb2.LogLine(
        attempt=attempt, text=line.text, dispatch_no=fence, number=line.number
    )
    set_micros(message.time, line.time_us)
    return message


def log_line_from_proto(message: enqueue_service_pb2.LogLine) -> LogLine:
    time_us = message.time.seconds * 1_000_000 + message.time.nanos // 1000
    return LogLine(message.number, time_us, message.text)
