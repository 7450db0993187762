"""What can be said about a job when it is submitted.

`NewJob` is the one list of it; the keyword arguments of every `enqueue` are its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from jobmesh.retry import Retry
from jobmesh.ties import Unique, Waits
from jobmesh.times import Span

if TYPE_CHECKING:
    from jobmesh.handlers import JobFunction


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to submit."""

    #: The job type, or the decorated function that handles it (then its defaults apply).
    type: str | JobFunction[..., Any]
    #: What the handler is given: bytes as they are, a Path uploaded as a file, all else as JSON.
    input: Any = None
    #: When it is due, with a time zone. None: now.
    at: datetime | None = None
    #: It is due this long after it was stored. Not together with `at`.
    delay: Span | None = None
    #: 0 to 9; among due jobs of a type the higher starts first.
    priority: int = 0
    #: What follows a failed attempt.
    retry: Retry | None = None
    #: Short for exponential backoff with this many retries. Not together with `retry`.
    retries: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The same key and content always give the same job. None: the client makes one up, so that
    #: its own retries are safe.
    idempotency_key: str | None = None
    #: It becomes EXPIRED if it has not started by then.
    expire: datetime | None = None
    #: How long an attempt may run.
    timeout: Span | None = None
    #: Jobs of a type with the same key share its limit `max_running_per_key`.
    concurrency_key: str = ""
    #: How long it may wait from due to start; then it becomes EXPIRED.
    start_timeout: Span | None = None
    #: The longest silence of a handler: without progress or heartbeat the attempt fails.
    progress_timeout: Span | None = None
    #: From the first due time to the end, all attempts and waits included.
    total_timeout: Span | None = None
    #: Media type of the input, where bytes or a file need one.
    content_type: str = ""
    #: Jobs that must end first: ids, handles, or `After(job, on_failure=…)`; one or several. In
    #: `enqueue_many` also NewJobs that come before it there.
    after: Waits = ()
    #: At most one live job of the namespace holds this key; `Unique(key, policy)` says what follows
    #: if one does.
    unique: str | Unique | None = None
    #: Where it stands in the `enqueue_many` that was given it last.
    _place: tuple[Any, int] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """TypeError names what protobuf would refuse without a name."""
        if not isinstance(self.type, str) and not hasattr(self.type, "spec"):
            raise TypeError(f"type: {_not_a_type(self.type)}")
        priority: Any = self.priority
        if priority is not None and not isinstance(priority, int):
            raise TypeError(f"priority: {priority!r} is not a number from 0 to 9")
        labels: Mapping[Any, Any] = self.labels or {}
        for key, value in labels.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(
                    f"labels: both of {key!r}: {value!r} must be text, as in {{'a': '1'}}"
                )


def _not_a_type(given: object) -> str:
    name = getattr(given, "__name__", "")
    if callable(given) and name:
        return f"{name} is a plain function: decorate it with @job, or give a type's name"
    return f"{given!r} is neither a type's name nor a function with @job"


class EnqueueOptions(TypedDict, total=False):
    """The keyword arguments of `enqueue`: the fields of NewJob."""

    at: datetime | None
    delay: Span | None
    priority: int
    retry: Retry | None
    retries: int | None
    labels: Mapping[str, str]
    idempotency_key: str | None
    expire: datetime | None
    timeout: Span | None
    concurrency_key: str
    start_timeout: Span | None
    progress_timeout: Span | None
    total_timeout: Span | None
    content_type: str
    after: Waits
    unique: str | Unique | None


def new_job(type: str | JobFunction[..., Any], input: Any, options: EnqueueOptions) -> NewJob:
    """The job that `enqueue(type, input, **options)` means; TypeError names what is no option."""
    unknown = options.keys() - EnqueueOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(EnqueueOptions.__annotations__)
        raise TypeError(
            f"{', '.join(sorted(unknown))}: no option of a job. A handler is given one input: pass "
            f"a dict or a dataclass. The options are {known}"
        )
    return NewJob(type, input, **options)
