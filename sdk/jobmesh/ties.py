"""What ties a job to others: the jobs it waits for, and a key that only one live job may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Union, get_args

if TYPE_CHECKING:
    from jobmesh.options import NewJob

OnFailure = Literal["cancel", "run", "fail"]
UniquePolicy = Literal["keep", "replace", "refuse"]


class HasId(Protocol):
    """A handle of a job, or a job."""

    @property
    def id(self) -> str: ...


#: An id, a handle or a job; or, within one `enqueue_many`, a NewJob given before.
JobRef = Union[str, HasId, "NewJob"]


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
        """ValueError if the job is not stored yet."""
        if isinstance(self.job, str):
            return self.job
        job_id = getattr(self.job, "id", None)
        if not isinstance(job_id, str):
            raise ValueError("after: a NewJob has no id yet: give both to one enqueue_many")
        return job_id


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
