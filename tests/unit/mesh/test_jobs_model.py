"""Records, and attempts as a fold over events."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.attempts import History, Outcome, attempts_from_events
from services.mesh.jobs.model import (
    EventFilter,
    JobEvent,
    NewJob,
    ObjectRef,
    Payload,
    Timeouts,
    request_hash_of,
)
from services.mesh.jobs.retry import Backoff, Failure, FailureKind, RetryPolicy
from services.mesh.jobs.states import Cause, JobState

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
JOB = UUID(int=7)
SPANS = st.none() | st.integers(0, 10**10).map(lambda ms: timedelta(milliseconds=ms))


@given(st.builds(Timeouts, SPANS, SPANS, SPANS, SPANS))
def test_timeouts_read_back_from_json(timeouts):
    assert Timeouts.from_json(timeouts.to_json()) == timeouts


@given(st.builds(ObjectRef, st.text(), st.integers(0, 2**40), st.binary(max_size=32)))
def test_object_references_read_back_from_json(ref):
    assert ObjectRef.from_json(ref.to_json()) == ref


BASE = NewJob(JOB, "n", "t", Payload.inline(b"x"), idempotency_key="k")


def test_the_request_hash_ignores_what_was_minted_for_the_request():
    minted = replace(BASE, id=UUID(int=8), traceparent="00-x", idempotency_key="other")
    assert request_hash_of(minted) == request_hash_of(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "m"},
        {"type": "u"},
        {"input": Payload.inline(b"y")},
        {"input": Payload.inline(b"x", "text/plain")},
        {"input": Payload.stored(ObjectRef("k", 1))},
        {"priority": 1},
        {"due_time": NOON},
        {"delay": timedelta(seconds=1)},
        {"expire_time": NOON},
        {"timeouts": Timeouts(run=timedelta(seconds=1))},
        {"retry": RetryPolicy(Backoff.FIXED, 2)},
        {"labels": {"a": "b"}},
    ],
)
def test_the_request_hash_sees_everything_the_caller_said(change):
    assert request_hash_of(replace(BASE, **change)) != request_hash_of(BASE)


def event(
    version: int, cause: Cause, state: JobState, attempt: int, fence: int, **more
) -> JobEvent:
    worker = f"w{fence}" if fence else None
    time = NOON + timedelta(seconds=version)
    values = {"due_time": None, "failure": None, "note": None} | more
    return JobEvent(
        JOB, version, state, cause, time, attempt, fence, worker, **values, namespace="n", type="t"
    )


def test_an_event_filter_restricts_by_each_of_its_fields():
    found = replace(event(1, Cause.CREATED, JobState.SCHEDULED, 0, 0), labels={"a": "b", "c": "d"})
    assert EventFilter().matches(found)
    assert EventFilter("n", frozenset({"t", "u"}), {"a": "b"}).matches(found)
    assert not EventFilter("m").matches(found)
    assert not EventFilter(types=frozenset({"u"})).matches(found)
    assert not EventFilter(labels={"a": "c"}).matches(found)
    assert not EventFilter(labels={"a": "b", "e": "f"}).matches(found)


# --- attempts

CREATED = event(1, Cause.CREATED, JobState.SCHEDULED, 0, 0)
BOOM = Failure("E", "boom")
SLOW = Failure("RunTimeout", "", kind=FailureKind.TIMEOUT)


def test_a_job_that_was_never_claimed_has_no_attempts():
    assert attempts_from_events([CREATED]) == []


def test_what_was_said_of_a_jobs_end_is_its_end_note():
    cancelled = replace(event(2, Cause.CANCELLED, JobState.CANCELLED, 0, 0), note="wrong input")
    assert History.of([CREATED, cancelled], 1000).end_note == "wrong input"
    handed = replace(event(2, Cause.HANDED_BACK, JobState.SCHEDULED, 0, 0), note="drained")
    assert History.of([CREATED, handed], 1000).end_note == "", "it has not ended"


def test_a_retried_job_has_an_attempt_per_claim():
    events = [
        CREATED,
        event(2, Cause.CLAIMED, JobState.DISPATCHED, 1, 1),
        event(3, Cause.STARTED, JobState.RUNNING, 1, 1),
        event(4, Cause.RETRY, JobState.SCHEDULED, 1, 1, failure=BOOM),
        event(5, Cause.CLAIMED, JobState.DISPATCHED, 2, 2),
        event(6, Cause.STARTED, JobState.RUNNING, 2, 2),
        event(7, Cause.SUCCEEDED, JobState.SUCCEEDED, 2, 2),
    ]
    first, second = attempts_from_events(events)
    assert (first.number, first.fence, first.outcome) == (1, 1, Outcome.FAILED)
    assert (first.worker_id, first.failure) == ("w1", BOOM)
    assert (first.start_time, first.end_time) == (events[2].time, events[3].time)
    assert (second.number, second.fence, second.outcome) == (2, 2, Outcome.SUCCEEDED)


@pytest.mark.parametrize(
    ("cause", "failure", "outcome"),
    [
        (Cause.HANDED_BACK, None, Outcome.HANDED_BACK),
        (Cause.SNOOZED, None, Outcome.SNOOZED),
        (Cause.SWEPT, None, Outcome.SWEPT),
        (Cause.RESCUED, None, Outcome.LOST),
        (Cause.RETRY, SLOW, Outcome.TIMED_OUT),
        (Cause.CANCELLED, None, Outcome.CANCELLED),
    ],
)
def test_each_end_has_its_outcome(cause, failure, outcome):
    claimed = event(2, Cause.CLAIMED, JobState.DISPATCHED, 1, 1)
    ended = event(3, cause, JobState.SCHEDULED, 1, 1, failure=failure)
    assert attempts_from_events([CREATED, claimed, ended])[0].outcome is outcome


def test_an_open_attempt_has_no_end():
    claimed = event(2, Cause.CLAIMED, JobState.DISPATCHED, 1, 1)
    attempt = attempts_from_events([CREATED, claimed])[0]
    assert (attempt.outcome, attempt.start_time, attempt.end_time) == (Outcome.OPEN, None, None)


def test_a_cancel_between_attempts_changes_no_attempt():
    events = [
        CREATED,
        event(2, Cause.CLAIMED, JobState.DISPATCHED, 1, 1),
        event(3, Cause.RETRY, JobState.SCHEDULED, 1, 1, failure=BOOM),
        event(4, Cause.CANCELLED, JobState.CANCELLED, 1, 1),
    ]
    assert attempts_from_events(events)[0].outcome is Outcome.FAILED


def test_a_late_commit_turns_a_lost_attempt_into_a_success():
    events = [
        CREATED,
        event(2, Cause.CLAIMED, JobState.DISPATCHED, 1, 1),
        event(3, Cause.SWEPT, JobState.SCHEDULED, 1, 1),
        event(4, Cause.LATE_COMMIT, JobState.SUCCEEDED, 1, 1),
    ]
    assert [a.outcome for a in attempts_from_events(events)] == [Outcome.SUCCEEDED]
