"""Log lines of an attempt, and the form in which they are kept: one JSON array per line.

Lines are numbered from 1 within their dispatch. Numbers are never used twice, so that a reader who
has seen some of them live goes on in the kept ones, and sees where lines are missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Name of the object under the attempt's own key.
LOG_NAME = "log"
#: What there was of it while the attempt ran: all that is left when its worker was killed.
LOG_SO_FAR_NAME = "log.so-far"
LOG_CONTENT_TYPE = "application/x-ndjson"


class LogLine(NamedTuple):
    """One line. A text that stands for lines which were dropped has the number of the last one."""

    number: int
    time_us: int
    text: str


def log_to_bytes(lines: Iterable[LogLine]) -> bytes:
    """The form in which lines are kept."""
    return b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)


def log_from_bytes(data: bytes) -> Iterator[LogLine]:
    """Read what `log_to_bytes` wrote; anything else is a ValueError."""
    for text in data.splitlines():
        try:
            number, time_us, line = json.loads(text)
            yield LogLine(int(number), int(time_us), str(line))
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a kept log: {text[:40]!r}") from error


def dropped_line(after: int, before: LogLine) -> LogLine:
    """Stands for the lines between number `after` and the line `before`."""
    count = before.number - after - 1
    return LogLine(before.number - 1, before.time_us, f"[{count} lines were dropped]")
