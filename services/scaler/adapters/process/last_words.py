"""What a process that died has to say about it: the most telling line at the end of its log."""

from __future__ import annotations

import json
import re
from pathlib import Path

_TAIL_BYTES = 16 * 1024
_CHARACTERS = 300
_COMPLAINT = re.compile(r"error|exception|cannot|fatal|refused|denied", re.IGNORECASE)
#: Time, level and service in front of a console line.
_PREAMBLE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} \w+ +\w+ ")


def last_words(log: Path) -> str:
    """The last line that complains, else simply the last one; empty if there is none."""
    said = [text for line in _tail(log) if (text := _plain(line))]
    complaints = [text for text in said if _COMPLAINT.search(text)]
    return (complaints or said or [""])[-1][:_CHARACTERS]


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _plain(line: str) -> str:
    """The sentence of a log line, whichever format it has."""
    line = line.strip()
    if not line.startswith("{"):
        return _PREAMBLE.sub("", line)
    try:
        return str(json.loads(line).get("message", ""))
    except (ValueError, AttributeError):
        return line
