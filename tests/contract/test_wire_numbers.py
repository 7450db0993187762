"""Enums that are stored as numbers, and sent as numbers, mean the same in both places."""

import pytest
from jobmesh.model import JobState as SdkState
from jobmesh.v1 import job_pb2, retry_pb2, schedule_pb2

from services.mesh.jobs.cron import DstGap, DstOverlap
from services.mesh.jobs.overlap import Overlap
from services.mesh.jobs.recurrence import CatchUp
from services.mesh.jobs.retry import Backoff
from services.mesh.jobs.states import Cause, JobState


@pytest.mark.parametrize(
    ("ours", "wire", "prefix"),
    [
        (JobState, job_pb2.JobState, "JOB_STATE_"),
        (Cause, job_pb2.EventReason, "EVENT_REASON_"),
        (Backoff, retry_pb2.Backoff, "BACKOFF_"),
        (CatchUp, schedule_pb2.CatchUpPolicy, "CATCH_UP_POLICY_"),
        (Overlap, schedule_pb2.OverlapPolicy, "OVERLAP_POLICY_"),
        (DstGap, schedule_pb2.DstGapPolicy, "DST_GAP_POLICY_"),
        (DstOverlap, schedule_pb2.DstOverlapPolicy, "DST_OVERLAP_POLICY_"),
    ],
)
def test_the_model_and_the_wire_number_alike(ours, wire, prefix):
    assert {member.name: member.value for member in ours} == {
        name.removeprefix(prefix): number for name, number in wire.items()
    }


def test_the_sdk_knows_every_state_of_the_wire():
    told = {name.removeprefix("JOB_STATE_") for name in job_pb2.JobState.keys()}  # noqa: SIM118
    assert {state.name for state in SdkState} - {"UNKNOWN"} == told - {"UNSPECIFIED"}
