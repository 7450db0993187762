"""What a handler says, on its way out of an executor process."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest

from services.worker.executor import frames, line
from services.worker.executor.frames import Header
from services.worker.executor.line import (
    INTERVAL_SECONDS,
    MAX_LINE,
    HandlerLine,
    Link,
    Printed,
)


class Sent(list[Header]):
    """A link that keeps what is sent."""

    def send(self, header: Header, body: bytes = b"") -> None:
        self.append(header)


class SlowTimer:
    """A timer whose thread is not given the processor."""

    def __init__(self, *_: Any) -> None:
        self.daemon = True

    def start(self) -> None:
        pass

    cancel = start


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by the test."""
    clock = [100.0]
    monkeypatch.setattr(line.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(line.threading, "Timer", SlowTimer)
    return clock


def test_a_heartbeat_does_not_take_the_place_of_progress_that_was_held_back(
    now: list[float],
) -> None:
    sent = Sent()
    handler = HandlerLine(cast("Link", sent))
    handler.progress(1, 3, "one")
    handler.progress(2, 3, "two")
    now[0] += INTERVAL_SECONDS
    handler.heartbeat()
    assert [header.get("message") for header in sent] == ["one", "two"]
    now[0] += INTERVAL_SECONDS
    handler.heartbeat()
    assert sent[-1] == {"kind": frames.HEARTBEAT}


def test_what_a_thread_says_after_its_attempt_does_not_reach_the_next_one(
    now: list[float],
) -> None:
    sent = Sent()
    handler = HandlerLine(cast("Link", sent))
    handler.finish()
    now[0] += INTERVAL_SECONDS
    handler.progress(1, 3, "late")
    now[0] += INTERVAL_SECONDS
    handler.heartbeat()
    handler.extend(1)
    assert sent == []


def test_text_without_an_end_of_line_is_not_kept_for_ever() -> None:
    sent = Sent()
    printed = Printed(cast("Link", sent), "stdout", io.TextIOWrapper(io.BytesIO()))
    for _ in range(MAX_LINE):
        printed.write("\r50 %")
    printed.write("x" * 3 * MAX_LINE + "\n")
    printed.finish()
    lines = [header["line"] for header in sent]
    assert max(map(len, lines)) == MAX_LINE
    assert "".join(lines) == "\r50 %" * MAX_LINE + "x" * 3 * MAX_LINE
