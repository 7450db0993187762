"""A wall clock that is wrong, for a process started with this folder on its PYTHONPATH.

There is no library to shift the clock of a single process without root and a compiler, so what
Python programs are told by `datetime` is shifted instead, before anything else is imported.
`CHAOS_CLOCK_SKEW` is in seconds. `time.time` stays: gRPC compares it with the kernel's own clock,
which nobody could shift apart from it. The monotonic clock stays right, as it would.
"""

# mypy: ignore-errors
import datetime as _module
import os

_SKEW = _module.timedelta(seconds=float(os.environ.get("CHAOS_CLOCK_SKEW", "0")))
_right = _module.datetime


class datetime(_right):  # noqa: N801 - it takes the place of the original
    """The same class, but for what it says about now."""

    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + _SKEW

    @classmethod
    def utcnow(cls):
        return super().now(_module.UTC).replace(tzinfo=None) + _SKEW


if _SKEW:
    _module.datetime = datetime
