"""What follows a failed attempt: a pure decision over the job's policy and its history.

Two counters decide. `attempt` is how many attempts the job has spent, the failing one included.
`losses` is how many dispatches ended through no fault of the job (its worker died, a store was
away). The first `LOSS_BUDGET` losses cost nothing; from then on a loss spends the attempt like any
failure, so that a job which kills its workers ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum, unique
from random import Random
from typing import Any

LOSS_BUDGET = 3
#: The failure of a job whose total time is over. Final, whatever its policy says.
TOTAL_TIMEOUT = "TotalTimeout"

_FIRST_LOSS_DELAY = timedelta(seconds=1)
_LAST_LOSS_DELAY = timedelta(seconds=30)
_LARGEST_EXPONENT = 64
_MILLISECOND = timedelta(milliseconds=1)


@unique
class FailureKind(IntEnum):
    """Whose fault it was, which decides what it costs."""

    UNSPECIFIED = 0
    ERROR = 1
    """The handler raised, or its process died."""
    TIMEOUT = 2
    """The attempt ran past its timeout."""
    INFRASTRUCTURE = 3
    """Something the mesh depends on was away."""
    PERMANENT = 4
    """No later attempt can go better: the input is gone, or the handler said so."""
    LOST = 5
    """The worker's lease ended while it held the job."""


_LOSSES = (FailureKind.LOST, FailureKind.INFRASTRUCTURE)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed."""

    type: str
    message: str
    traceback: str = ""
    kind: FailureKind = FailureKind.ERROR
    exit_code: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The form in the row and in the event."""
        return {
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
            "kind": int(self.kind),
            "exit_code": self.exit_code,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Read what `to_json` wrote; unknown fields of a newer version are ignored."""
        return cls(
            type=str(data.get("type", "")),
            message=str(data.get("message", "")),
            traceback=str(data.get("traceback", "")),
            kind=FailureKind(data.get("kind", FailureKind.ERROR)),
            exit_code=data.get("exit_code"),
        )


@unique
class Backoff(IntEnum):
    """How the wait grows from one attempt to the next. NONE means no second attempt."""

    UNSPECIFIED = 0
    NONE = 1
    FIXED = 2
    EXPONENTIAL = 3
    LIST = 4
    LINEAR = 5


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to try again. The default tries once."""

    kind: Backoff = Backoff.NONE
    max_attempts: int = 1
    initial_delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(hours=1)
    factor: float = 2.0
    jitter: float = 0.0
    """Fraction of the wait that is drawn at random around it: 0.2 gives 80-120 %, never above
    `max_delay`.
    """
    delays: tuple[timedelta, ...] = ()
    """The waits of `Backoff.LIST`; the last one repeats."""
    window: timedelta | None = None
    """No retry begins later than this after the job was first due."""
    non_retryable: frozenset[str] = field(default_factory=frozenset)
    """Failure types that end the job at once."""
    retryable: frozenset[str] = field(default_factory=frozenset)
    """If any, the only failure types that are tried again."""
    non_retryable_exits: frozenset[int] = field(default_factory=frozenset)
    """Exit codes that end the job at once."""
    retryable_exits: frozenset[int] = field(default_factory=frozenset)
    """If any, the only exit codes that are tried again; failures without one are not concerned."""

    @property
    def attempts(self) -> int:
        """How many attempts the policy grants in all."""
        return max(1, self.max_attempts) if self.kind > Backoff.NONE else 1

    def to_json(self) -> dict[str, Any]:
        """The form in the row."""
        return {
            "kind": int(self.kind),
            "attempts": self.attempts,
            "max_attempts": self.max_attempts,
            "initial_ms": self.initial_delay // _MILLISECOND,
            "max_ms": self.max_delay // _MILLISECOND,
            "factor": self.factor,
            "jitter": self.jitter,
            "delays_ms": [delay // _MILLISECOND for delay in self.delays],
            "window_ms": None if self.window is None else self.window // _MILLISECOND,
            "non_retryable": sorted(self.non_retryable),
            # Left out when empty: this form is hashed for idempotency keys, and an older
            # version's hash of the same request must stay the same.
            **{name: sorted(rule) for name, rule in self._newer_rules() if rule},
        }

    def _newer_rules(self) -> tuple[tuple[str, frozenset[Any]], ...]:
        return (
            ("retryable", self.retryable),
            ("non_retryable_exits", self.non_retryable_exits),
            ("retryable_exits", self.retryable_exits),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> RetryPolicy:
        """Read what `to_json` wrote; None is the default policy."""
        if data is None:
            return DEFAULT_POLICY
        window = data.get("window_ms")
        return cls(
            kind=Backoff(data["kind"]),
            max_attempts=int(data["max_attempts"]),
            initial_delay=int(data["initial_ms"]) * _MILLISECOND,
            max_delay=int(data["max_ms"]) * _MILLISECOND,
            factor=float(data["factor"]),
            jitter=float(data["jitter"]),
            delays=tuple(int(delay) * _MILLISECOND for delay in data["delays_ms"]),
            window=None if window is None else int(window) * _MILLISECOND,
            non_retryable=frozenset(data["non_retryable"]),
            retryable=frozenset(data.get("retryable", ())),
            non_retryable_exits=frozenset(data.get("non_retryable_exits", ())),
            retryable_exits=frozenset(data.get("retryable_exits", ())),
        )


DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after a wait; the attempt is spent."""

    after: timedelta


@dataclass(frozen=True, slots=True)
class NoCost:
    """Try again after a wait; the attempt is given back and counted as a loss."""

    after: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job has failed for good, and why it is not tried again."""

    reason: str


Decision = Retry | NoCost | GiveUp


def decide(
    policy: RetryPolicy,
    attempt: int,
    losses: int,
    failure: Failure,
    random: Random,
    elapsed: timedelta,
) -> Decision:
    """Decide what follows `failure` of attempt number `attempt` (1 is the first).

    `losses` counts earlier losses only; `elapsed` is the time since the job was first due.
    """
    if failure.kind is FailureKind.PERMANENT:
        return GiveUp("the failure is permanent")
    if failure.type == TOTAL_TIMEOUT and failure.kind is FailureKind.TIMEOUT:
        return GiveUp("its total time is over")
    if (why := _ruled_out(policy, failure)) is not None:
        return GiveUp(why)
    if _costs_nothing(failure, losses):
        return NoCost(_loss_delay(failure, losses))
    if attempt >= policy.attempts:
        return GiveUp(f"attempts spent: {attempt} of {policy.attempts}")
    after = backoff(policy, attempt, random)
    if policy.window is not None and elapsed + after > policy.window:
        return GiveUp("the retry window is over")
    return Retry(after)


def backoff(policy: RetryPolicy, attempt: int, random: Random) -> timedelta:
    """The wait after failed attempt number `attempt`, jitter included, never above `max_delay`."""
    exact = min(_exact_backoff(policy, attempt), policy.max_delay)
    if policy.jitter <= 0:
        return exact
    share = 1 + policy.jitter * (2 * random.random() - 1)
    return max(timedelta(0), min(exact * share, policy.max_delay))


def _exact_backoff(policy: RetryPolicy, attempt: int) -> timedelta:
    match policy.kind:
        case Backoff.NONE | Backoff.UNSPECIFIED:
            return timedelta(0)
        case Backoff.FIXED:
            return policy.initial_delay
        case Backoff.LINEAR:
            return _scaled(policy, float(attempt))
        case Backoff.EXPONENTIAL:
            return _scaled(policy, policy.factor ** min(attempt - 1, _LARGEST_EXPONENT))
        case Backoff.LIST:
            if not policy.delays:
                return timedelta(0)
            return policy.delays[min(attempt, len(policy.delays)) - 1]


def _scaled(policy: RetryPolicy, scale: float) -> timedelta:
    # Compared as seconds first: a timedelta overflows where a float does not.
    seconds = policy.initial_delay.total_seconds() * scale
    if seconds >= policy.max_delay.total_seconds():
        return policy.max_delay
    return timedelta(seconds=seconds)


def _ruled_out(policy: RetryPolicy, failure: Failure) -> str | None:
    """Why this failure is not tried again, whatever is left of the attempts; None if it may be."""
    if failure.type in policy.non_retryable:
        return f"{failure.type} is not retryable"
    if failure.kind in _LOSSES:
        # Not the handler's failure: who lists what is worth another try does not mean these.
        return None
    if policy.retryable and failure.type not in policy.retryable:
        return f"{failure.type} is not among the retryable types"
    return _exit_ruled_out(policy, failure.exit_code)


def _exit_ruled_out(policy: RetryPolicy, code: int | None) -> str | None:
    if code is None:
        return None
    if code in policy.non_retryable_exits:
        return f"exit code {code} is not retryable"
    if policy.retryable_exits and code not in policy.retryable_exits:
        return f"exit code {code} is not among the retryable ones"
    return None


def _costs_nothing(failure: Failure, losses: int) -> bool:
    return failure.kind in _LOSSES and losses < LOSS_BUDGET


def _loss_delay(failure: Failure, losses: int) -> timedelta:
    # A lost worker has already cost its lease's time; a dependency that is away needs some.
    if failure.kind is FailureKind.LOST:
        return timedelta(0)
    return min(_FIRST_LOSS_DELAY * (1 << losses), _LAST_LOSS_DELAY)
