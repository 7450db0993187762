"""Which parents keep a job from running, and what is said of one that ended because of them."""

from __future__ import annotations

from random import Random

import pytest

from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import TERMINAL, JobState
from services.mesh.jobs.ties import Dependency, Parent, ParentFailurePolicy, open_waits

JOB = new_job_id(1, 1, Random(1))
STATES = [state for state in JobState if state is not JobState.UNSPECIFIED]


@pytest.mark.parametrize("state", [None, *STATES])
@pytest.mark.parametrize("policy", list(ParentFailurePolicy))
def test_a_parent_stands_in_the_way_until_it_ended_well_enough(
    state: JobState | None, policy: ParentFailurePolicy
) -> None:
    dependency = Dependency(JOB, policy)
    well = state is JobState.SUCCEEDED
    well |= policy is ParentFailurePolicy.RUN and (state is None or state in TERMINAL)
    waits = open_waits([dependency], {JOB: Parent(JOB, state)})
    assert waits == (() if well else (dependency,))


@pytest.mark.parametrize("policy", list(ParentFailurePolicy))
def test_a_dependency_survives_the_row(policy: ParentFailurePolicy) -> None:
    dependency = Dependency(JOB, policy)
    assert Dependency.from_json(dependency.to_json()) == dependency


def test_the_failure_names_the_parent_its_end_and_its_cause() -> None:
    failure = Parent(JOB, JobState.FAILED, Failure("ValueError", "boom")).as_failure()
    assert failure.type == "ParentFailed"
    expected = f"job {JOB}, which it waited for, ended FAILED: ValueError: boom"
    assert failure.message == expected


def test_a_parent_that_is_gone_is_called_gone() -> None:
    assert "is gone" in Parent(JOB, None).as_failure().message


def test_a_long_chain_of_causes_stays_short() -> None:
    failure = Failure("E", "x" * 8000)
    for _ in range(5):
        failure = Parent(JOB, JobState.FAILED, failure).as_failure()
    assert len(failure.message) < 700
