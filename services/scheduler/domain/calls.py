"""When the workers of a type are called.

A call is heard by every worker of the type, so it is not repeated lightly: each one that changed
nothing makes the next one wait for longer. The bound is what a job waits for at most when calls
have been lost, with a broker that lost all else: a lost dispatch has six seconds, and four of them
have passed when it is swept. The first pauses are short, for a broker that loses some messages
loses calls and their answers, too; whoever has no room hears two calls more for it, once.
"""

from __future__ import annotations

from collections.abc import Collection

FIRST_SECONDS, LONGEST_SECONDS = 0.25, 1.5


class CallPlan:
    """Remembers the types that were called and still wait. Times are the caller's, in seconds."""

    def __init__(self) -> None:
        #: By type: when it may be called again, and how long the pause after that is.
        self._called: dict[str, tuple[float, float]] = {}

    def due(self, late: Collection[str], now: float) -> list[str]:
        """Which of the types whose work stays undone are called now; the others are forgotten."""
        self._called = {type_: at for type_, at in self._called.items() if type_ in late}
        chosen = [type_ for type_ in sorted(late) if self._called.get(type_, (now, 0))[0] <= now]
        for type_ in chosen:
            _, pause = self._called.get(type_, (now, FIRST_SECONDS))
            self._called[type_] = (now + pause, min(2 * pause, LONGEST_SECONDS))
        return chosen

    def wait(self, now: float) -> float | None:
        """How long until somebody is called again; None: nobody waits."""
        times = [at for at, _ in self._called.values()]
        return max(0.0, min(times) - now) if times else None
