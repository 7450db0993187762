"""The rules of the contract, on messages that make a rule impossible to compute."""

from __future__ import annotations

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2

from services.mesh.errors import InvalidField
from services.mesh.rpc import Rules

FAR = 10**15


def absurd_job() -> job_pb2.JobSpec:
    retry = {"initial_delay": {}, "max_delay": {"seconds": FAR}}
    return job_pb2.JobSpec(type="echo", retry_policy=retry)


def test_a_duration_beyond_its_own_bounds_is_a_bad_field():
    with pytest.raises(InvalidField) as caught:
        Rules().check(pb.EnqueueRequest(job=absurd_job()))
    assert [v.field for v in caught.value.violations] == ["job.retry_policy.max_delay"]


def test_of_a_batch_the_item_is_named():
    (violation,) = Rules().violations(pb.EnqueueItem(job=absurd_job()), "items[3]")
    assert violation.field == "items[3].job.retry_policy.max_delay"
    assert "range" in violation.description
