"""Tracebacks are those that Python writes, however often a place fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import FunctionType, TracebackType

import pytest

from services.worker.adapters.tracebacks import MOST_KEPT, Tracebacks


def simple(number: int) -> None:
    raise ValueError(f"no {number}")


def within(number: int) -> None:
    simple(number) if number % 2 else simple(number + 1)


def noted(number: int) -> None:
    error = KeyError(number)
    error.add_note(f"look at {number}")
    raise error


def caused(number: int) -> None:
    try:
        simple(number)
    except ValueError as error:
        raise RuntimeError(f"could not {number}") from error


def on_the_way(number: int) -> None:
    try:
        simple(number)
    except ValueError:
        raise RuntimeError(f"could not {number}")  # noqa: B904 - what it is about


def alone(number: int) -> None:
    try:
        simple(number)
    except ValueError:
        raise RuntimeError(f"could not {number}") from None


def many(number: int) -> None:
    raise ExceptionGroup("several", [ValueError(number), KeyError(number)])


def deep(number: int, left: int = 60) -> None:
    if not left:
        simple(number)
    deep(number, left - 1)


def unparsable(number: int) -> None:
    compile(f"x = {number} +", "<input>", "exec")


def raised_by(function: Callable[[int], None], number: int) -> BaseException:
    try:
        function(number)
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize(
    "function",
    [simple, within, noted, caused, on_the_way, alone, many, deep, unparsable],
)
def test_the_text_is_that_of_python(function: Callable[[int], None]) -> None:
    writer = Tracebacks()
    for number in (1, 2, 3, 2):
        error = raised_by(function, number)
        assert writer.text(error) == "".join(traceback.format_exception(error))


def test_an_exception_that_was_never_raised_has_a_text() -> None:
    error = ValueError("made by hand")
    assert Tracebacks().text(error) == "".join(traceback.format_exception(error))


def test_a_place_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[TracebackType | None] = []
    format_tb = traceback.format_tb

    def counted(step: TracebackType | None) -> list[str]:
        written.append(step)
        return format_tb(step)

    monkeypatch.setattr(traceback, "format_tb", counted)
    writer = Tracebacks()
    for number in range(10):
        assert f"ValueError: no {number}" in writer.text(raised_by(simple, number))
    assert len(written) == 1


def test_no_more_places_are_kept_than_allowed() -> None:
    writer = Tracebacks()
    for number in range(MOST_KEPT + 10):
        # A function of its own, with the same text.
        code = simple.__code__.replace(co_firstlineno=number + 1)
        writer.text(raised_by(FunctionType(code, {}), number))
        assert 0 < len(writer._kept) <= MOST_KEPT
