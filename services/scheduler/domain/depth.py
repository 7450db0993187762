"""How far back claims look.

A claim walks its type's queue from the longest due on. Claimed jobs are gone from it, but their
entries stay until a vacuum may remove them; and while somebody holds a transaction open (a backup,
a forgotten session) none may. Then every claim would walk over all that was claimed since, and
after ten minutes take dozens of times as long.

So a claim that found all there was sets a mark, and the next ones begin there, less a margin for
what was being stored meanwhile. What has been due for longer can still come up: a dispatch that was
lost, a job that was handed back, one that another claim had locked. It is found by the next look at
everything, which may be had again after so many times what the last one took. While looks are
quick, which is the rule, that is at once and nothing changes; when they are slow they take a small
part of the time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DepthRules:
    """Times in seconds."""

    margin: float = 10.0
    """Longer than a statement that stores jobs may take."""
    factor: float = 20.0
    """A look at everything is followed by so many times what it took without another."""
    quick: float = 0.005
    """A look that took no longer than this may be had again at once."""
    most: float = 0.5
    """Everything is looked at this often, whatever it takes."""


class Depth:
    """The mark of one (type, shard)."""

    __slots__ = ("_again_at", "_mark", "_rules")

    def __init__(self, rules: DepthRules) -> None:
        self._rules = rules
        self._mark: float | None = None
        self._again_at = float("-inf")

    def next(self, now: float) -> float | None:
        """How far back the next claim shall look, in seconds; None: as far as there is work."""
        if self._mark is None or now >= self._again_at:
            return None
        return now - self._mark + self._rules.margin

    def wait(self, now: float) -> float:
        """Seconds until everything may be looked at again."""
        return max(0.0, self._again_at - now)

    def looked(self, began: float, ended: float, *, short: bool) -> None:
        """A claim looked at everything; `short`: and took all there was."""
        took = ended - began
        rest = min(self._rules.most, self._rules.factor * took)
        self._again_at = ended + (rest if took > self._rules.quick else 0.0)
        self._mark = began if short else None
