"""How long a batch of single calls is held back for callers who may come back.

Callers that make one call after the other come back as soon as they were answered, all of them. To
wait for the last of them costs each a few milliseconds, and makes one batch of what would be two or
three, on every hop behind this one. Calls of many who make one each come at their own pace: waiting
gains nothing there, and makes everybody late.

The two cannot be told apart but by waiting. If most came, it was worth it, and is done again. If
not, batches go soon, and it is tried again after some of them; of more and more, if it stays so.
"""

from __future__ import annotations

#: So much of what may come is worth having waited for.
WORTH = 0.8
#: Held back no longer than this, in seconds, and than so many times what the last batch took.
LONG_SECONDS, LONG_SHARE = 0.1, 5.0
#: The same where nobody came back.
SHORT_SECONDS, SHORT_SHARE = 0.04, 0.5
#: Batches that go soon, after waiting in vain once, and at most.
FIRST_REST, MOST_REST = 4, 64


class Patience:
    """What waiting has brought so far."""

    __slots__ = ("_next_rest", "_rest")

    def __init__(self) -> None:
        self._rest, self._next_rest = 0, FIRST_REST

    def seconds(self, last_took: float) -> float:
        """How long to wait for those who were just answered; `last_took`: until they were."""
        if self._rest:
            return min(SHORT_SECONDS, SHORT_SHARE * last_took)
        return min(LONG_SECONDS, LONG_SHARE * last_took)

    def went(self, came: int, expected: int) -> None:
        """A batch goes now, of so many that might have come."""
        if self._rest:
            self._rest -= 1
        elif came >= WORTH * expected:
            self._next_rest = FIRST_REST
        else:
            self._rest = self._next_rest
            self._next_rest = min(MOST_REST, 2 * self._next_rest)
