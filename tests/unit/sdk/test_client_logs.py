"""The log of a job over several streams: each line once, to the last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from jobmesh.client.logs import LogStream
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2


class DrainingReplica:
    """It goes after the second of four lines; the job logs the others, and ends, right then."""

    def __init__(self) -> None:
        self.stub = self
        self.state = job_pb2.JOB_STATE_RUNNING
        self.asked: list[pb.WatchLogsRequest] = []

    def WatchLogs(self, request: pb.WatchLogsRequest, timeout: float) -> Lines:
        asked = pb.WatchLogsRequest()
        asked.CopyFrom(request)
        self.asked.append(asked)
        last = 2 if len(self.asked) == 1 else 4
        return Lines(self, range(asked.after_number + 1, last + 1))

    async def GetJob(self, request: pb.GetJobRequest) -> pb.GetJobResponse:
        return pb.GetJobResponse(job=job_pb2.Job(id=request.job_id, state=self.state))

    async def call(self, method: Any, request: Any) -> Any:
        return await method(request)


class Lines:
    def __init__(self, replica: DrainingReplica, numbers: range) -> None:
        self._replica, self._numbers = replica, numbers

    async def __aiter__(self) -> AsyncIterator[pb.WatchLogsResponse]:
        for number in self._numbers:
            line = pb.LogLine(dispatch_no=1, number=number, text=f"line {number}")
            yield pb.WatchLogsResponse(lines=[line])
        self._replica.state = job_pb2.JOB_STATE_SUCCEEDED

    def cancel(self) -> None:
        pass


async def test_what_a_job_logged_while_its_replica_went_is_read_too() -> None:
    replica = DrainingReplica()
    stream = LogStream(cast("Any", replica), "default", "j", 0, follow=True)
    assert [line.number async for line in stream.lines()] == [1, 2, 3, 4]
    assert [(asked.once, asked.after_number) for asked in replica.asked] == [(False, 0), (True, 2)]
