"""Spans and instants as people write them: "90s", "5m", "in 2h", ISO 8601."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

#: Seconds, a timedelta, or text such as "30s", "5m", "1h30m", "2d".
Span = float | int | timedelta | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


#: The contract's bound, ten thousand years; what is no number is not within it either.
MAX_SPAN_SECONDS = 315_576_000_000.0


def seconds(span: Span) -> float:
    """The length of a span in seconds; ValueError if it is none."""
    length = _seconds(span)
    if not abs(length) <= MAX_SPAN_SECONDS:
        raise ValueError(f"{str(span)[:40]!r} is not a span: it is longer than 10,000 years")
    return length


def _seconds(span: Span) -> float:
    if isinstance(span, timedelta):
        return span.total_seconds()
    if isinstance(span, str):
        return _parse(span)
    if isinstance(span, bool) or not isinstance(span, (int, float)):
        raise ValueError(f"{span!r} is not a span: use seconds, or text such as '30s' or '5m'")
    return float(span) if abs(span) <= MAX_SPAN_SECONDS else math.inf


def _parse(text: str) -> float:
    compact = text.strip().lower().replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is not a span: use for example 30s, 5m, 1h30m or 2d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def instant(text: str, now: datetime) -> datetime:
    """An ISO time (in local time unless it says otherwise), "in 5m", or "now"."""
    words = text.strip()
    if words.lower() == "now":
        return now
    if words.lower().startswith("in "):
        return moved(now, seconds(words[3:]), text)
    try:
        return datetime.fromisoformat(words).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: use for example 2026-12-24T18:00+01:00 or 'in 5m'"
        ) from None


def moved(time: datetime, by_seconds: float, said: str) -> datetime:
    """The time so much later; ValueError about what was `said` if no calendar has it."""
    try:
        return time + timedelta(seconds=by_seconds)
    except OverflowError:
        raise ValueError(f"{said!r} is not a time: no calendar goes that far") from None


def human(span_seconds: float) -> str:
    """A span for people: 840 ms, 3.2 s, 5m 10s, 2h 05m, 3d 04h."""
    if span_seconds < 0:
        return "-" + human(-span_seconds)
    if span_seconds < 1:
        return f"{span_seconds * 1000:.0f} ms"
    if span_seconds < 60:
        return f"{span_seconds:.1f} s"
    whole = int(span_seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
