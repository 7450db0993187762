"""Tracebacks as text, of handlers that fail again and again at the same place.

To write one costs half a millisecond and more: source files are looked at, each line is parsed for
the marks under it. When something that handlers need is away every job fails there, and the worker
would do little else. So the text of the places is kept; only the last lines, which say what went
wrong, are written each time.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

#: Places of which the text is kept.
MOST_KEPT = 256
#: A deeper stack, a recursion mostly, is written anew.
MOST_FRAMES = 50

_Place = tuple[CodeType | int, ...]


class Tracebacks:
    """What `traceback.format_exception` writes."""

    def __init__(self) -> None:
        self._kept: dict[_Place, str] = {}

    def text(self, error: BaseException) -> str:
        place = _place(error.__traceback__) if _stands_alone(error) else ()
        if not place:
            return "".join(traceback.format_exception(error))
        frames = self._kept.get(place)
        if frames is None:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            frames = self._kept[place] = "".join(traceback.format_tb(error.__traceback__))
        what = "".join(traceback.format_exception_only(error))
        return f"Traceback (most recent call last):\n{frames}{what}"


def _stands_alone(error: BaseException) -> bool:
    """Whether no other exception is shown with it."""
    shows_context = error.__context__ is not None and not error.__suppress_context__
    return not (shows_context or error.__cause__ or isinstance(error, BaseExceptionGroup))


def _place(step: TracebackType | None) -> _Place:
    """Where it was raised, and how one got there; nothing if that is far."""
    place: list[CodeType | int] = []
    while step is not None:
        place += (step.tb_frame.f_code, step.tb_lasti)
        if len(place) > 2 * MOST_FRAMES:
            return ()
        step = step.tb_next
    return tuple(place)
