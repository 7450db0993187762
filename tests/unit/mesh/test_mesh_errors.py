from __future__ import annotations

import copy
import pickle

from services.mesh.errors import (
    Code,
    FieldViolation,
    InvalidField,
    JobNotFound,
    MeshError,
    NoHealthyShard,
    OutcomeUnknown,
    Overloaded,
    QuotaExceeded,
    RemoteError,
    Resource,
    ShardUnavailable,
    StaleFence,
)


def test_stale_fence_carries_job_and_fence() -> None:
    error = StaleFence("j1", 3)
    assert error.metadata == {"job_id": "j1", "fence": "3"}
    assert error.resource == Resource("job", "j1")
    assert not error.retryable


def test_unknown_outcome_is_unavailable_but_not_retryable_by_itself() -> None:
    assert OutcomeUnknown("s0").code is Code.UNAVAILABLE
    assert not OutcomeUnknown("s0").retryable
    assert ShardUnavailable("s0").retryable


def test_retry_after_given_wins_over_the_class_default() -> None:
    assert NoHealthyShard().retry_after == 1.0
    assert NoHealthyShard(retry_after=4.0).retry_after == 4.0
    assert QuotaExceeded("n", "jobs", retry_after=0.5).retry_after == 0.5


def test_fixed_message_can_be_replaced() -> None:
    assert Overloaded().message == "too much work in flight"
    assert str(Overloaded("the report queue is full")) == "the report queue is full"


def test_invalid_field_collects_all_violations() -> None:
    broken = (FieldViolation("a", "is empty"), FieldViolation("", "give a or b"))
    error = InvalidField.of(broken)
    assert error.violations == broken
    assert error.message == "a: is empty; give a or b"


def test_restored_error_has_the_class_of_its_reason() -> None:
    error = MeshError.restore("JOB_NOT_FOUND", Code.NOT_FOUND, "gone", metadata={"job_id": "j"})
    assert isinstance(error, JobNotFound)
    assert error.resource == Resource("job", "j")


def test_unknown_reason_is_restored_as_remote_error_with_its_code() -> None:
    error = MeshError.restore("SOMETHING_NEWER", Code.ABORTED, "try again")
    assert type(error) is RemoteError
    assert (error.reason, error.code) == ("SOMETHING_NEWER", Code.ABORTED)


def test_errors_survive_pickle_and_copy() -> None:
    for clone in (pickle.loads(pickle.dumps(StaleFence("j", 1))), copy.copy(StaleFence("j", 1))):  # noqa: S301
        assert isinstance(clone, StaleFence)
        assert clone.metadata == {"job_id": "j", "fence": "1"}
        assert str(clone) == "dispatch 1 of job j was superseded"
