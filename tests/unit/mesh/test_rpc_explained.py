"""What callers are told of whatever a handler raises."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from services.mesh.errors import DeadlineExceeded, Draining, OutcomeUnknown, Overloaded
from services.mesh.rpc.interceptors.errors import explained
from services.mesh.rpc.interceptors.method import Call, Method


def call(name: str, **metadata: str) -> Call:
    context = SimpleNamespace(invocation_metadata=lambda: tuple(metadata.items()))
    return Call(Method("jobmesh.v1.EnqueueService", name, checked=True), context)


@pytest.mark.parametrize("name", ["Enqueue", "EnqueueBatch", "PutJobs", "CancelJob", "RetryJob"])
def test_a_write_that_the_end_of_the_process_cut_off_may_have_been_carried_out(name: str) -> None:
    assert isinstance(explained(call(name), asyncio.CancelledError()), OutcomeUnknown)


@pytest.mark.parametrize("name", ["GetJob", "ListJobs", "WatchJobs", "CountJobs", "Describe"])
def test_a_read_that_it_cut_off_is_for_another_replica(name: str) -> None:
    assert isinstance(explained(call(name), asyncio.CancelledError()), Draining)


def test_errors_of_ours_pass_and_timeouts_are_deadlines() -> None:
    refused = Overloaded("too much")
    assert explained(call("Enqueue"), refused) is refused
    assert isinstance(explained(call("Enqueue"), TimeoutError()), DeadlineExceeded)


def test_a_write_that_is_sent_again_and_turned_away_may_have_been_carried_out_before() -> None:
    again = {"grpc-previous-rpc-attempts": "1"}
    refused = Overloaded("too much")
    for name in ("RedriveJobs", "CancelJobs", "DeleteSchedule"):
        assert isinstance(explained(call(name, **again), refused), OutcomeUnknown)
    assert explained(call("GetJobs", **again), refused) is refused
    assert explained(call("RedriveJobs", traceparent="00-1-2-00"), refused) is refused
