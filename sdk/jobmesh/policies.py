"""Spans and retry policies as the contract says them. Apart from the client, so that a worker need
not load that.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from jobmesh.retry import Retry
from jobmesh.times import Span, seconds
from jobmesh.v1 import retry_pb2

_BACKOFFS = {
    "none": retry_pb2.BACKOFF_NONE,
    "fixed": retry_pb2.BACKOFF_FIXED,
    "linear": retry_pb2.BACKOFF_LINEAR,
    "exponential": retry_pb2.BACKOFF_EXPONENTIAL,
    "list": retry_pb2.BACKOFF_LIST,
}


def to_duration(span: Span) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds(span) * 1e9))
    return message


def to_retry_policy(retry: Retry) -> retry_pb2.RetryPolicy:
    policy = retry_pb2.RetryPolicy(
        backoff=_BACKOFFS[retry.backoff],
        max_attempts=retry.attempts,
        factor=retry.factor,
        jitter=retry.jitter,
        delays=[to_duration(delay) for delay in retry.delays],
        non_retryable_types=retry.never_on,
        retryable_types=retry.just_on,
        non_retryable_exit_codes=retry.never_on_exits,
        retryable_exit_codes=retry.just_on_exits,
    )
    if retry.initial_seconds is not None:
        policy.initial_delay.CopyFrom(to_duration(retry.initial_seconds))
    if retry.max_seconds is not None:
        policy.max_delay.CopyFrom(to_duration(retry.max_seconds))
    if retry.window_seconds is not None:
        policy.retry_window.CopyFrom(to_duration(retry.window_seconds))
    return policy
