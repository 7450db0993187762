"""How far back claims look.

A claim walks its type's queue from the longest due on. Claimed jobs are gone from it, but their
entries stay until a vacuum may remove them; and while somebody holds a transaction open (a backup,
a forgotten session) none may. Then every claim would walk over all that was claimed since, and
after ten minutes take dozens of times as long.

So a claim that found all there was sets a mark, and the next ones begin there, less a margin for
what was being stored meanwhile, and move it on. What has been due for longer can still come up: a
dispatch that was lost, a job that was handed back, had to wait for others or took longer to store.
Whoever puts it there says so, and then everything is looked at. Words may get lost, and another
claim may have had a job locked, so everything is looked at all the same from time to time: again
after so many times what the last look took in the server. While looks are quick, which is the rule,
that is at once and nothing changes; when they are slow they take a small part of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.domain.looks import Slowness


@dataclass(frozen=True, slots=True)
class DepthRules:
    """Times in seconds."""

    margin: float = 0.5
    """Longer than a statement may take whose jobs are not said to have been due for long."""
    factor: float = 1000.0
    """A look at everything is followed by so many times what it took without another."""
    quick: float = 0.0005
    """A look that took no longer than this may be had again at once."""
    most: float = 120.0
    """Everything is looked at this often, whatever it takes. The keeper of the shard looks more
    often for what has been due for long, once for all types, and says so.
    """


class Depth:
    """The mark of one (type, shard)."""

    __slots__ = ("_again_at", "_forgot_at", "_mark", "_rules", "_slowness")

    def __init__(self, rules: DepthRules) -> None:
        self._rules = rules
        self._slowness = Slowness()
        self._mark: float | None = None
        self._again_at = self._forgot_at = float("-inf")

    def next(self, now: float) -> float | None:
        """How far back the next claim shall look, in seconds; None: as far as there is work."""
        if self._mark is None or now >= self._again_at:
            return None
        return now - self._mark + self._rules.margin

    def wait(self, now: float) -> float:
        """Seconds until everything may be looked at again."""
        return max(0.0, self._again_at - now)

    def looked(self, began: float, ended: float, took: float, *, short: bool) -> None:
        """A claim looked at everything, for so long; `short`: and took all there was."""
        took = self._slowness.of(took)
        rest = min(self._rules.most, self._rules.factor * took)
        self._again_at = ended + (rest if took > self._rules.quick else 0.0)
        self._mark = began if short and began > self._forgot_at else None

    def went_on(self, began: float, *, short: bool) -> None:
        """A claim looked from the mark on; `short`: and took all there was."""
        if short and self._mark is not None and began > self._forgot_at:
            self._mark = max(self._mark, began)

    def forget(self, now: float) -> None:
        """Something came up that may lie before the mark."""
        self._mark, self._forgot_at = None, now
