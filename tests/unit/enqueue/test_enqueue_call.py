"""One job by one call: once it is stored, nothing that follows makes an error of it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb

from services.enqueue import convert
from services.enqueue.servicer.jobs import JobCalls
from services.mesh.errors import DeadlineExceeded, MeshError, Overloaded, ShardUnavailable
from services.mesh.rpc.items import to_item_error

JOB_ID = "018f0e2e-7e0a-7aaa-8000-000000000000"
FAILURES = [ShardUnavailable("s0"), Overloaded(), DeadlineExceeded()]


class Stand:
    """What the call needs of a desk: puts succeed, and looks fail as they are told to."""

    def __init__(self, *, existing: bool = False) -> None:
        self.existing = existing
        self.watching: MeshError | None = None
        self.getting: MeshError | None = None
        self.item_error: MeshError | None = None
        self.gate = SimpleNamespace(admitted=lambda *_: nullcontext())
        self.watches = self.orchestrator = self

    def check(self, request):
        pass

    async def admit(self, namespace, spec, key):
        return convert.new_job(namespace, spec, key, "")

    async def put_one(self, job):
        stored = job_pb2.Job(id=JOB_ID, state=job_pb2.JOB_STATE_SCHEDULED)
        return orchestrator_pb.PutJobResult(job=stored, existing=self.existing)

    async def watch(self, *args, **kwargs):
        if self.watching is not None:
            raise self.watching
        yield

    async def GetJobs(self, request):
        if self.getting is not None:
            raise self.getting
        answer = orchestrator_pb.GetJobsResponse()
        if self.item_error is not None:
            answer.results.add(error=to_item_error(self.item_error))
        else:
            answer.results.add(job=job_pb2.Job(id=JOB_ID, state=job_pb2.JOB_STATE_SUCCEEDED))
        return answer

    async def enqueue(self, *, key: str = "", wait: bool = False) -> pb.EnqueueResponse:
        request = pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo", unique_key=key))
        if wait:
            request.wait.seconds = 5
        return await JobCalls(self).Enqueue(request, None)


async def test_a_call_that_waits_answers_with_the_end() -> None:
    answer = await Stand().enqueue(wait=True)
    assert answer.job.state == job_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.parametrize("where", ["watching", "getting", "item_error"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.reason)
async def test_a_stored_job_is_answered_with_even_if_its_end_is_not_known(where, error) -> None:
    stand = Stand()
    setattr(stand, where, error)
    answer = await stand.enqueue(wait=True)
    assert (answer.job.id, answer.job.spec.type) == (JOB_ID, "echo")
    assert answer.job.state == job_pb2.JOB_STATE_SCHEDULED


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: error.reason)
async def test_who_holds_a_unique_key_is_named_even_if_it_cannot_be_looked_at(error) -> None:
    stand = Stand(existing=True)
    stand.getting = error
    answer = await stand.enqueue(key="report")
    assert (answer.job.id, answer.existing) == (JOB_ID, True)
    assert not answer.job.HasField("spec"), "it was not necessarily submitted like this"


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        ({"seconds": 3600}, 3600),
        ({"nanos": 5}, 1),
        ({"seconds": 10**10}, 3600),
        ({"seconds": -5}, 0),
    ],
)
def test_how_long_a_call_asks_to_be_kept_waiting(wait, seconds) -> None:
    assert convert.wait_of(pb.EnqueueRequest(wait=wait)) == seconds
    assert convert.wait_of(pb.EnqueueRequest()) == 0
