"""What the contract's rules cannot say."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from jobmesh.v1 import job_pb2

from services.enqueue import convert
from services.enqueue.domain.admission import check_expiry, check_owner, check_start
from services.mesh.errors import InvalidField, ObjectNotFound

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(days=3650), -timedelta(seconds=50)])
def test_reasonable_starts_are_taken(ahead):
    check_start(NOW + ahead, NOW)


@pytest.mark.parametrize("ahead", [-timedelta(minutes=2), timedelta(days=4000)])
def test_absurd_starts_are_refused_by_field(ahead):
    with pytest.raises(InvalidField, match="schedule_time"):
        check_start(NOW + ahead, NOW)


def test_an_expiry_that_has_passed_is_refused():
    with pytest.raises(InvalidField, match="expire_time"):
        check_expiry(NOW - timedelta(hours=1), NOW)


def test_a_time_that_no_calendar_has_is_an_invalid_field():
    spec = job_pb2.JobSpec(type="echo")
    spec.schedule_time.seconds = 2**60
    with pytest.raises(InvalidField, match="schedule_time"):
        convert.check_spec(spec, NOW)


@pytest.mark.parametrize("key", ["other/1", "a", "a-b/1", "a/../b/1", "/a/1"])
def test_objects_of_others_do_not_exist(key):
    with pytest.raises(ObjectNotFound):
        check_owner(key, "a")


PARENT = "01890000-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"dependencies": [{"job_id": "x"}]}, "dependencies[0].job_id"),
        ({"dependencies": [{"job_id": str(UUID(int=4))}]}, "dependencies[0].job_id"),
        ({"dependencies": [{"job_id": PARENT}] * 2}, "dependencies[1].job_id"),
        ({"unique_policy": 1}, "unique_policy"),
        (
            {"unique_key": "k", "unique_policy": 2, "dependencies": [{"job_id": PARENT}]},
            "unique_policy",
        ),
    ],
)
def test_ties_that_make_no_sense_are_refused_by_name(spec, field):
    with pytest.raises(InvalidField) as caught:
        convert.check_spec(job_pb2.JobSpec(**spec), NOW)
    assert caught.value.violations[0].field == field


def test_ties_that_make_sense_are_admitted():
    parents = [{"job_id": PARENT, "on_failure": 2}, {"job_id": PARENT[:-1] + "1"}]
    spec = job_pb2.JobSpec(dependencies=parents, unique_key="k", unique_policy=3)
    convert.check_spec(spec, NOW)


@pytest.mark.parametrize("ties", [{"dependencies": [{"job_id": PARENT}]}, {"unique_key": "k"}])
def test_the_template_of_a_schedule_has_no_ties(ties):
    with pytest.raises(InvalidField, match="the jobs of a schedule"):
        convert.check_template(job_pb2.JobSpec(**ties), NOW)


def test_the_request_hash_covers_what_the_caller_said():
    one = convert.new_job("n", job_pb2.JobSpec(type="echo", labels={"a": "1", "b": "2"}), "k", "t1")
    same = convert.new_job(
        "n", job_pb2.JobSpec(type="echo", labels={"b": "2", "a": "1"}), "k", "t2"
    )
    other = convert.new_job("n", job_pb2.JobSpec(type="echo", priority=1), "k", "t1")
    assert one.request_hash == same.request_hash != other.request_hash
