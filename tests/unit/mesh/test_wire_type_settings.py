"""Whose word about retries holds: the job's, else the operator's, else the handler's."""

from __future__ import annotations

import pytest
from jobmesh.v1 import job_pb2, retry_pb2
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.lease import Entry
from services.mesh.wire.type_settings import (
    fill_defaults,
    settings_message,
    settings_value,
    type_settings_from_proto,
)


def policy(attempts: int) -> retry_pb2.RetryPolicy:
    return retry_pb2.RetryPolicy(backoff=retry_pb2.BACKOFF_FIXED, max_attempts=attempts)


NONE = retry_pb2.RetryPolicy(backoff=retry_pb2.BACKOFF_NONE)


@pytest.mark.parametrize(
    ("job", "operator", "handler", "attempts"),
    [
        (None, None, None, None),
        (None, None, policy(4), 4),
        (None, policy(3), policy(4), 3),
        (None, NONE, policy(4), 1),
        (policy(2), policy(3), policy(4), 2),
        (NONE, None, policy(4), 1),
    ],
)
def test_the_nearer_word_holds(job, operator, handler, attempts):
    settings = TypeSettings(type="x", retry_policy=operator, handler_retry_policy=handler)
    spec = job_pb2.JobSpec(type="x", retry_policy=job)
    fill_defaults(spec, settings)
    assert spec.HasField("retry_policy") == (attempts is not None)
    assert (spec.retry_policy.max_attempts or 1) == (attempts or 1)
    if job is None:
        # The firing of schedules goes by this one.
        retry = type_settings_from_proto(settings).retry
        assert (None if retry is None else retry.attempts) == attempts


def test_what_is_stored_has_the_handlers_word_that_is_told_and_no_name():
    given = TypeSettings(type="x", etag="7", max_running=2, handler_retry_policy=policy(9))
    asked = TypeSettings(max_running=9, handler_retry_policy=policy(4))
    stored = settings_message(Entry("/types/x", settings_value(given, asked), 8))
    assert stored == TypeSettings(type="x", etag="8", max_running=2, handler_retry_policy=policy(4))
    silent = settings_value(given, TypeSettings())
    assert TypeSettings.FromString(silent) == TypeSettings(max_running=2)
