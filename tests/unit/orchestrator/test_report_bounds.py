"""What workers in any language say is held to bounds: nothing they say ends their stream."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import job_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.jobs import ids
from services.mesh.jobs.reports import Failed, HandedBack
from services.orchestrator.convert_reports import report_from_proto

JOB = ids.new_job_id(1, 1_700_000_000_000, Random(7)).bytes
MONTH = timedelta(days=30)


def wait_of(kind: str, span: Duration | None) -> timedelta | None:
    said = pb.AttemptReport(job_id=JOB, dispatch_no=1)
    match kind:
        case "failed":
            said.failed.CopyFrom(pb.AttemptFailed(retry_after=span))
        case "handed_back":
            said.handed_back.CopyFrom(pb.AttemptHandedBack(delay=span))
        case _:
            said.snoozed.CopyFrom(pb.AttemptSnoozed(delay=span))
    report = report_from_proto(said, "w")
    assert isinstance(report, Failed | HandedBack)
    return report.retry_after if isinstance(report, Failed) else report.delay


@pytest.mark.parametrize("kind", ["failed", "handed_back", "snoozed"])
@pytest.mark.parametrize(
    ("span", "wait"),
    [
        (Duration(seconds=2, nanos=500_000_000), timedelta(seconds=2.5)),
        (Duration(), timedelta(0)),
        (Duration(seconds=2**62), MONTH),
        (Duration(seconds=10**12), MONTH),
        (Duration(seconds=30 * 24 * 3600, nanos=1_000), MONTH),
        (Duration(seconds=-(2**62)), timedelta(0)),
        (Duration(seconds=-1, nanos=-500_000_000), timedelta(0)),
        (Duration(nanos=-2_000_000_000), timedelta(0)),
    ],
)
def test_a_wait_is_held_to_bounds(kind: str, span: Duration, wait: timedelta) -> None:
    assert wait_of(kind, span) == wait


def test_a_wait_that_is_not_said_is_none() -> None:
    assert [wait_of(kind, None) for kind in ("failed", "handed_back")] == [None, None]


def test_what_is_said_of_a_failure_is_cut_to_the_contract() -> None:
    failure = job_pb2.Failure(type="E" * 999, message="é" * 9_000, traceback="x" * 99_999 + "end")
    report = report_from_proto(
        pb.AttemptReport(job_id=JOB, dispatch_no=1, failed=pb.AttemptFailed(failure=failure)), "w"
    )
    assert isinstance(report, Failed)
    assert len(report.failure.type) == 200
    assert report.failure.message == "é" * 4096
    assert len(report.failure.traceback) == 16_384
    assert report.failure.traceback.endswith("end"), "where it happened is last"


def test_why_an_attempt_is_given_back_is_cut() -> None:
    said = pb.AttemptHandedBack(reason="because " * 1_000)
    report = report_from_proto(pb.AttemptReport(job_id=JOB, dispatch_no=1, handed_back=said), "w")
    assert isinstance(report, HandedBack)
    assert len(report.note) == 1_000
