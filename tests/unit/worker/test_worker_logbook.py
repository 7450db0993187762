"""The log of one attempt: bounded, numbered, and honest about what is gone."""

from __future__ import annotations

import pytest

from services.mesh.jobs.logs import LogLine, log_from_bytes, log_to_bytes
from services.worker.domain.logbook import MAX_LINE_BYTES, LogBook


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_lines_are_numbered_and_a_reader_goes_on_after_one() -> None:
    book = LogBook(10_000)
    book.add("one\ntwo\n", 7)
    book.add("three", 8)
    assert book.all() == [LogLine(1, 7, "one"), LogLine(2, 7, "two"), LogLine(3, 8, "three")]
    assert texts(book.after(1, 1)) == ["two"]
    assert book.after(3, 10) == []


def test_the_oldest_lines_make_way_and_are_counted() -> None:
    book = LogBook(1_000)
    for n in range(1, 101):
        book.add(f"line {n}", n)
    kept = len(book.all()) - 1
    assert 0 < kept < 10
    assert book.dropped == 100 - kept
    assert book.all()[0] == LogLine(100 - kept, 101 - kept, f"[{100 - kept} lines were dropped]")
    assert texts(book.after(98, 10)) == ["line 99", "line 100"]
    behind = book.after(100 - kept - 2, 10)
    assert behind[0].text == "[2 lines were dropped]"


def test_a_line_is_cut_and_cannot_hold_what_no_store_takes() -> None:
    book = LogBook(1_000_000)
    book.add("x" * 100_000, 1)
    book.add("a\0b\udc80", 1)
    assert len(book.all()[0].text) == MAX_LINE_BYTES
    assert book.all()[1].text == "ab?"


def test_kept_lines_read_back_as_they_were() -> None:
    lines = [LogLine(1, 5, 'quote " and \u2028 newline'), LogLine(2, 6, "")]
    assert list(log_from_bytes(log_to_bytes(lines))) == lines
    for garbage in (b"nonsense\n", b"[1,2]\n", b'{"a":1}\n'):
        with pytest.raises(ValueError, match="not a kept log"):
            list(log_from_bytes(garbage))
