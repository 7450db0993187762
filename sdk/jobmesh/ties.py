"""What ties a job to others: the jobs it waits for, and a key that only one live job may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

OnFailure = Literal["cancel", "run", "fail"]
UniquePolicy = Literal["keep", "replace", "refuse"]


class HasId(Protocol):
    """A handle of a job, or a job."""

    @property
    def id(self) -> str: ...


JobRef = str | HasId


@dataclass(frozen=True, slots=True)
class After:
    """Wait for a job: `After(job, on_failure="run")`.

    If that job does not succeed, this one is cancelled too ("cancel"), runs all the same ("run"),
    or fails ("fail").
    """

    job: JobRef
    on_failure: OnFailure = "cancel"

    def __post_init__(self) -> None:
        _check("on_failure", self.on_failure, get_args(OnFailure))

    @property
    def job_id(self) -> str:
        return self.job if isinstance(self.job, str) else self.job.id


@dataclass(frozen=True, slots=True)
class Unique:
    """A key that one live job of the namespace may hold: `Unique("report", "replace")`.

    If a job that has not ended holds it: that one is returned ("keep"), takes the new content if no
    worker ever had it ("replace"), or the call fails with AlreadyExists ("refuse").
    """

    key: str
    policy: UniquePolicy = "keep"

    def __post_init__(self) -> None:
        _check("policy", self.policy, get_args(UniquePolicy))
        if not self.key:
            raise ValueError("a unique key must not be empty")


Waits = JobRef | After | Iterable[JobRef | After]


def waits_of(given: Waits) -> Iterator[After]:
    """What to wait for, one by one."""
    # A text is an iterable, too; a handle is none.
    many = [given] if isinstance(given, str | After) or not isinstance(given, Iterable) else given
    for one in many:
        yield one if isinstance(one, After) else After(one)


def _check(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} must be one of {', '.join(choices)}, not {value!r}")
