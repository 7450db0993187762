"""Spans and instants as people write them: "90s", "5m", "in 2h", ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

#: Seconds, a timedelta, or text such as "30s", "5m", "1h30m", "2d".
Span = float | int | timedelta | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def seconds(span: Span) -> float:
    """The length of a span in seconds; ValueError if it is none."""
    if isinstance(span, timedelta):
        return span.total_seconds()
    if isinstance(span, str):
        return _parse(span)
    if isinstance(span, bool) or not isinstance(span, (int, float)):
        raise ValueError(f"{span!r} is not a span: use seconds, or text such as '30s' or '5m'")
    return float(span)


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
        return now + timedelta(seconds=_parse(words[3:]))
    try:
        return datetime.fromisoformat(words).astimezone(UTC)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: use for example 2026-12-24T18:00+01:00 or 'in 5m'"
        ) from None


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
