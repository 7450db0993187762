"""What callers are told of whatever a handler raises."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from services.mesh.errors import DeadlineExceeded, Draining, OutcomeUnknown, Overloaded
from services.mesh.rpc.interceptors.errors import explained
from services.mesh.rpc.interceptors.method import Call, Method


def call(name: str) -> Call:
    return Call(Method("jobmesh.v1.EnqueueService", name, checked=True), SimpleNamespace())


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
