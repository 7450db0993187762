"""Postgres cannot hold the character NUL: no text that is stored may bring one in."""

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2

from services.mesh.errors import InvalidField
from services.mesh.rpc import Rules

JOB = "0190163d-8694-739b-aea5-966c26f8ad91"
ECHO = job_pb2.JobSpec(type="echo")


def retried(**policy) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(type="echo", retry_policy=policy)


@pytest.mark.parametrize(
    "request_",
    [
        pb.EnqueueRequest(job=ECHO, idempotency_key="a\0b"),
        pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo", labels={"a": "b\0"})),
        pb.EnqueueRequest(job=job_pb2.JobSpec(type="ec\0ho")),
        pb.EnqueueRequest(namespace="a\0", job=ECHO),
        pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo", input={"content_type": "a/b\0"})),
        pb.CancelJobRequest(job_id=JOB, reason="be\0cause"),
        pb.PauseScheduleRequest(name="s", note="no\0te"),
        pb.ListJobsRequest(filter={"schedule": "s\0"}),
        pb.ListJobsRequest(filter={"labels": {"a": "\0"}}),
        pb.ListJobsRequest(filter={"labels": {"a\0": "b"}}),
        pb.EnqueueRequest(job=retried(retryable_types=["a\0b"])),
        pb.EnqueueRequest(job=retried(non_retryable_types=["fine", "\0"])),
    ],
)
def test_text_with_a_nul_is_refused_by_rule(request_):
    with pytest.raises(InvalidField):
        Rules().check(request_)
