"""How many jobs to claim for one message.

A batch must fit one broker message. How large a job's input is shows only after the claim, so the
next claim of a type goes by what its last jobs weighed.
"""

from __future__ import annotations


class BatchLimits:
    """The largest claim that makes sense, per type."""

    def __init__(self, most: int, message_bytes: int, types: int = 10_000) -> None:
        self._most = most
        self._message_bytes = message_bytes
        self._types = types
        self._weight: dict[str, float] = {}

    def limit(self, type_: str, credit: int) -> int:
        """How many jobs of the type to claim for that much credit; at least 1."""
        fits = self._message_bytes / self._weight.get(type_, 1.0)
        return max(1, min(credit, self._most, int(fits)))

    def weighed(self, type_: str, jobs: int, size: int) -> None:
        """A batch of so many jobs took so many bytes."""
        if jobs < 1:
            return
        if type_ not in self._weight and len(self._weight) >= self._types:
            self._weight.pop(next(iter(self._weight)))
        each, before = size / jobs, self._weight.get(type_, 0.0)
        # Up at once, down slowly: one batch too many small ones costs less than one too large.
        self._weight[type_] = max(each, 0.9 * before + 0.1 * each, 1.0)
