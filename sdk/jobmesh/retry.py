"""Retry policies, built by name.

    Retry.none()                       one attempt
    Retry.fixed("30s", attempts=4)     30 s between four attempts
    Retry.exponential("1s")            1, 2, 4, 8 s … between five attempts

    Retry.fixed("1m").except_on("ValueError")      but not after this failure
    Retry.fixed("1m").only_on_exit(75)             of programs' failures only after this exit code

`attempts` counts the first one too. Losses of the infrastructure (a killed worker, a shard away)
are not attempts and are not governed by this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jobmesh.times import Span, seconds

Backoff = Literal["none", "fixed", "linear", "exponential", "list"]

DEFAULT_ATTEMPTS = 5
#: The contract allows no more.
MAX_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True)
class Retry:
    """What follows a failed attempt. Make one with the class methods."""

    backoff: Backoff = "none"
    attempts: int = 1
    initial_seconds: float | None = None
    max_seconds: float | None = None
    factor: float = 0
    jitter: float = 0
    delays: tuple[float, ...] = ()
    window_seconds: float | None = None
    never_on: tuple[str, ...] = ()
    just_on: tuple[str, ...] = ()
    never_on_exits: tuple[int, ...] = ()
    just_on_exits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {self.attempts}")

    @classmethod
    def none(cls) -> Retry:
        """One attempt, no retry."""
        return cls()

    @classmethod
    def fixed(
        cls, delay: Span = 1, *, attempts: int = DEFAULT_ATTEMPTS, jitter: float = 0
    ) -> Retry:
        """The same wait each time."""
        return cls("fixed", attempts, initial_seconds=seconds(delay), jitter=jitter)

    @classmethod
    def linear(
        cls, step: Span = 1, *, attempts: int = DEFAULT_ATTEMPTS, jitter: float = 0
    ) -> Retry:
        """Waits of one step, two steps, three steps, …."""
        return cls("linear", attempts, initial_seconds=seconds(step), jitter=jitter)

    @classmethod
    def exponential(
        cls,
        initial: Span = 1,
        *,
        factor: float = 2,
        maximum: Span = 3600,
        attempts: int = DEFAULT_ATTEMPTS,
        jitter: float = 0.1,
    ) -> Retry:
        """Waits that grow by `factor` each time, up to `maximum`."""
        return cls(
            "exponential",
            attempts,
            initial_seconds=seconds(initial),
            max_seconds=seconds(maximum),
            factor=factor,
            jitter=jitter,
        )

    @classmethod
    def waits(cls, delays: Sequence[Span], *, jitter: float = 0) -> Retry:
        """Exactly these waits: one attempt more than there are."""
        spans = tuple(seconds(delay) for delay in delays)
        return cls("list", len(spans) + 1, delays=spans, jitter=jitter)

    def within(self, window: Span) -> Retry:
        """The same, but no attempt starts later than `window` after the first was due."""
        return replace(self, window_seconds=seconds(window))

    def except_on(self, *failure_types: str) -> Retry:
        """The same, but failures of these types (such as "ValueError") are final at once."""
        return replace(self, never_on=(*self.never_on, *failure_types))

    def only_on(self, *failure_types: str) -> Retry:
        """The same, but only failures of these types are tried again; all others are final."""
        return replace(self, just_on=(*self.just_on, *failure_types))

    def except_on_exit(self, *codes: int) -> Retry:
        """The same, but failures with these exit codes are final at once."""
        return replace(self, never_on_exits=(*self.never_on_exits, *codes))

    def only_on_exit(self, *codes: int) -> Retry:
        """The same, but of the failures with an exit code only these are tried again."""
        return replace(self, just_on_exits=(*self.just_on_exits, *codes))
