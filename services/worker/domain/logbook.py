"""The log of one attempt: the newest lines, within a bound."""

from __future__ import annotations

from collections import deque
from itertools import islice

from services.mesh.jobs.logs import LogLine, dropped_line
from services.worker.domain.ending import head

MAX_LINE_BYTES = 8192
#: What a line costs besides its text.
LINE_BYTES = 100


class LogBook:
    """Takes lines; the oldest ones make way when there are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: deque[LogLine] = deque()
        self._size = 0
        self._last = 0

    def add(self, text: str, time_us: int) -> None:
        """Take a text of one or more lines."""
        for line in text.rstrip("\n").split("\n"):
            self._last += 1
            kept = LogLine(self._last, time_us, head(line.replace("\0", ""), MAX_LINE_BYTES))
            self._lines.append(kept)
            self._size += _cost(kept)
        while self._size > self._limit and len(self._lines) > 1:
            self._size -= _cost(self._lines.popleft())

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def last(self) -> int:
        """The number of the newest line; 0 before the first."""
        return self._last

    @property
    def size(self) -> int:
        """What the lines that are here cost, in bytes."""
        return self._size

    @property
    def dropped(self) -> int:
        """How many lines made way."""
        return self._last - len(self._lines)

    def after(self, number: int, most: int) -> list[LogLine]:
        """Up to `most` lines after that number, and one that stands for those that are gone."""
        first = self.dropped + 1
        skipped = max(0, number - self.dropped)
        found = list(islice(self._lines, skipped, skipped + most))
        if found and number + 1 < first:
            return [dropped_line(number, found[0]), *found]
        return found

    def all(self) -> list[LogLine]:
        """All that is here, and one line that stands for those that are gone."""
        return self.after(0, len(self._lines))


def _cost(line: LogLine) -> int:
    return len(line.text) + LINE_BYTES
