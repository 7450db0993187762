"""What the checker says: violations, each under the invariant it breaks and what it counts as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

#: The figures of the last line of a run, besides zombies and fenced ones.
COUNTS = ("lost", "double", "twins", "stuck", "gaps")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise."""

    invariant: str
    counts_as: str
    """One of COUNTS, or "other"."""
    text: str
    job: str = ""

    def __str__(self) -> str:
        return f"{self.invariant} {self.counts_as}: {self.text}" + (
            f" (job {self.job})" if self.job else ""
        )


Violations = Iterator[Violation]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one check."""

    violations: list[Violation] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    """Why the run proves nothing, if it does not."""
    jobs: int = 0
    zombies: int = 0
    fenced: int = 0

    @property
    def word(self) -> str:
        if self.violations:
            return "FAIL"
        return "INVALID" if self.invalid else "PASS"

    @property
    def exit_code(self) -> int:
        return {"PASS": 0, "FAIL": 1, "INVALID": 2}[self.word]

    def counts(self) -> dict[str, int]:
        found = Counter(violation.counts_as for violation in self.violations)
        return {name: found[name] for name in COUNTS}
