"""Retry policies, timeouts and failures."""

from __future__ import annotations

from datetime import timedelta

from jobmesh.v1 import job_pb2, retry_pb2

from services.mesh.jobs.model import NO_TIMEOUTS, Timeouts
from services.mesh.jobs.retry import Backoff, Failure, FailureKind, RetryPolicy
from services.mesh.wire.values import duration, optional_timedelta, storable, timedelta_of

DEFAULT_ATTEMPTS = 5
DEFAULT_FIRST_DELAY = timedelta(seconds=1)
DEFAULT_LONGEST_DELAY = timedelta(hours=1)
DEFAULT_FACTOR = 2.0
#: The contract's bounds on failures.
MAX_TYPE = 200
MAX_MESSAGE_BYTES = 8 * 1024
MAX_TRACEBACK_BYTES = 16 * 1024


def retry_from_proto(message: retry_pb2.RetryPolicy) -> RetryPolicy:
    """Fills in the defaults that the contract states."""
    kind = _backoff_of(message)
    return RetryPolicy(
        kind=kind,
        max_attempts=message.max_attempts or _default_attempts(kind, len(message.delays)),
        initial_delay=_given(optional_timedelta(message, "initial_delay"), DEFAULT_FIRST_DELAY),
        max_delay=_given(optional_timedelta(message, "max_delay"), DEFAULT_LONGEST_DELAY),
        factor=message.factor or DEFAULT_FACTOR,
        jitter=message.jitter,
        delays=tuple(timedelta_of(delay) for delay in message.delays),
        window=optional_timedelta(message, "retry_window"),
        non_retryable=frozenset(message.non_retryable_types),
        retryable=frozenset(message.retryable_types),
        non_retryable_exits=frozenset(message.non_retryable_exit_codes),
        retryable_exits=frozenset(message.retryable_exit_codes),
    )


def retry_to_proto(policy: RetryPolicy | None) -> retry_pb2.RetryPolicy | None:
    """None for a policy that never retries: the wire leaves it unset."""
    if policy is None or policy.attempts <= 1:
        return None
    return retry_pb2.RetryPolicy(
        backoff=retry_pb2.Backoff.ValueType(policy.kind),
        max_attempts=policy.max_attempts,
        initial_delay=duration(policy.initial_delay),
        max_delay=duration(policy.max_delay),
        factor=policy.factor,
        jitter=policy.jitter,
        delays=[span for delay in policy.delays if (span := duration(delay)) is not None],
        retry_window=duration(policy.window),
        non_retryable_types=sorted(policy.non_retryable),
        retryable_types=sorted(policy.retryable),
        non_retryable_exit_codes=sorted(policy.non_retryable_exits),
        retryable_exit_codes=sorted(policy.retryable_exits),
    )


def timeouts_from_proto(message: job_pb2.JobSpec) -> Timeouts:
    if not message.HasField("timeouts"):
        return NO_TIMEOUTS
    given = message.timeouts
    return Timeouts(
        run=optional_timedelta(given, "run"),
        start=optional_timedelta(given, "start"),
        progress=optional_timedelta(given, "progress"),
        total=optional_timedelta(given, "total"),
    )


def timeouts_to_proto(timeouts: Timeouts) -> job_pb2.Timeouts | None:
    if timeouts == NO_TIMEOUTS:
        return None
    return job_pb2.Timeouts(
        run=duration(timeouts.run),
        start=duration(timeouts.start),
        progress=duration(timeouts.progress),
        total=duration(timeouts.total),
    )


def failure_to_proto(failure: Failure | None) -> job_pb2.Failure | None:
    if failure is None:
        return None
    return job_pb2.Failure(
        type=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        permanent=failure.kind is FailureKind.PERMANENT,
        exit_code=failure.exit_code,
    )


def failure_from_proto(
    message: job_pb2.Failure, *, timed_out: bool = False, infrastructure: bool = False
) -> Failure:
    """With texts as the contract has them: whoever reports may be a program in any language."""
    kind = FailureKind.PERMANENT if message.permanent else FailureKind.ERROR
    if timed_out:
        kind = FailureKind.TIMEOUT
    elif infrastructure:
        kind = FailureKind.INFRASTRUCTURE
    return Failure(
        type=storable(message.type)[:MAX_TYPE] or "Error",
        message=storable(message.message).encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore"),
        # Its end: the last frames tell the most.
        traceback=storable(message.traceback)
        .encode()[-MAX_TRACEBACK_BYTES:]
        .decode(errors="ignore"),
        kind=kind,
        exit_code=message.exit_code if message.HasField("exit_code") else None,
    )


def _backoff_of(message: retry_pb2.RetryPolicy) -> Backoff:
    if message.backoff == retry_pb2.BACKOFF_UNSPECIFIED:
        return Backoff.EXPONENTIAL if message.max_attempts > 1 else Backoff.NONE
    return Backoff(message.backoff)


def _default_attempts(kind: Backoff, delays: int) -> int:
    if kind is Backoff.NONE:
        return 1
    return delays + 1 if kind is Backoff.LIST else DEFAULT_ATTEMPTS


def _given(value: timedelta | None, default: timedelta) -> timedelta:
    return default if value is None else value
