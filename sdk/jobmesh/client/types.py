"""Types: which there are, and what holds for all jobs of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from google.protobuf.message import Message

from jobmesh.client.session import Session
from jobmesh.errors import CallError
from jobmesh.model import TypeSettings
from jobmesh.policies import to_duration, to_retry_policy
from jobmesh.retry import Retry
from jobmesh.times import Span, human
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import retry_pb2, type_settings_pb2

#: How often a change without an etag is tried again on settings that somebody else just changed.
TRIES = 5

TIMEOUTS = ("run", "start", "progress", "total")
STATES = ("succeeded", "failed", "cancelled", "expired")


class TypeChanges(TypedDict, total=False):
    """What can be set for a type. What is left out stays; None, or 0 for a limit, takes it away."""

    retry: Retry | None
    run_timeout: Span | None
    start_timeout: Span | None
    progress_timeout: Span | None
    total_timeout: Span | None
    max_running: int
    max_running_per_key: int
    keep_succeeded: Span | None
    keep_failed: Span | None
    keep_cancelled: Span | None
    keep_expired: Span | None


class TypeCalls:
    """The part of AsyncClient that is about types."""

    _session: Session

    async def types(self) -> Sequence[str]:
        """The job types that workers or pools have announced."""
        answer = await self._session.call(self._session.stub.ListTypes, pb.ListTypesRequest())
        return list(answer.types)

    async def type_settings(self, type: str) -> TypeSettings:
        """What holds for all jobs of a type: defaults, limits, retention."""
        request = pb.GetTypeSettingsRequest(type=type)
        answer = await self._session.call(self._session.stub.GetTypeSettings, request)
        return to_type_settings(answer.settings)

    async def set_type_settings(
        self, type: str, *, etag: str = "", **changes: Unpack[TypeChanges]
    ) -> TypeSettings:
        """Changes what is said and nothing else.

        With the etag of earlier settings, only if nobody else has changed them since.
        """
        for left in reversed(range(TRIES)):
            read = await self._session.call(
                self._session.stub.GetTypeSettings, pb.GetTypeSettingsRequest(type=type)
            )
            settings = read.settings
            if etag:
                settings.etag = etag
            apply_changes(settings, changes)
            request = pb.SetTypeSettingsRequest(settings=settings)
            change = self._session.stub.SetTypeSettings
            try:
                # Sent again after it was carried out, a change of the caller's etag would count as
                # somebody else's; one of ours is made anew.
                answer = await self._session.call(change, request, repeat=not etag)
                return to_type_settings(answer.settings)
            except CallError as error:
                if etag or not left or error.reason != "ETAG_MISMATCH":
                    raise
        raise AssertionError("unreachable: the last try returns or raises")


def apply_changes(settings: type_settings_pb2.TypeSettings, changes: TypeChanges) -> None:
    """Write the changes into the message."""
    if "max_running" in changes:
        settings.max_running = changes["max_running"]
    if "max_running_per_key" in changes:
        settings.max_running_per_key = changes["max_running_per_key"]
    if "retry" in changes:
        settings.ClearField("retry_policy")
        if (retry := changes["retry"]) is not None:
            settings.retry_policy.CopyFrom(to_retry_policy(retry))
    for bound in TIMEOUTS:
        _set_span(settings.timeouts, bound, changes, f"{bound}_timeout")
    for state in STATES:
        _set_span(settings.retention, state, changes, f"keep_{state}")


def _set_span(message: Message, field: str, changes: TypeChanges, name: str) -> None:
    if name not in changes:
        return
    message.ClearField(field)
    span: Span | None = changes[name]  # type: ignore[literal-required]
    if span is not None:
        getattr(message, field).CopyFrom(to_duration(span))


def to_type_settings(message: type_settings_pb2.TypeSettings) -> TypeSettings:
    asked = message.handler_retry_policy
    bounds = _spans(message, ("handler_run_timeout",))
    return TypeSettings(
        type=message.type,
        max_running=message.max_running,
        max_running_per_key=message.max_running_per_key,
        retry=_retry_words(message.retry_policy) if message.HasField("retry_policy") else "",
        timeouts=_spans(message.timeouts, TIMEOUTS),
        keep=_spans(message.retention, STATES),
        etag=message.etag,
        message=message,
        handler_retry=_retry_words(asked) if message.HasField("handler_retry_policy") else "",
        handler_timeout=bounds.get("handler_run_timeout"),
    )


def _spans(message: Message, fields: Sequence[str]) -> dict[str, float]:
    return {
        field: getattr(message, field).ToNanoseconds() / 1e9
        for field in fields
        if message.HasField(field)
    }


def _retry_words(policy: retry_pb2.RetryPolicy) -> str:
    """`exponential from 1.0 s, 5 attempts`."""
    name = retry_pb2.Backoff.Name(policy.backoff).removeprefix("BACKOFF_").lower()
    if name in ("unspecified", "none"):
        return "none"
    first = f" from {human(policy.initial_delay.ToNanoseconds() / 1e9)}"
    words = name + (first if policy.HasField("initial_delay") else "")
    return f"{words}, {policy.max_attempts} attempts"
