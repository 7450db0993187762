from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from services.mesh.telemetry import logs, tracing

log = logging.getLogger("services.sample")


@pytest.fixture(autouse=True)
def untouched_root() -> Iterator[None]:
    """Put the root logger back as it was: pytest's own handlers hang on it."""
    root = logging.getLogger()
    handlers, level = tuple(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def capture(format: Literal["json", "console"], level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure("enqueue", "e-1", format=format, level=level, stream=stream)
    return stream


def only(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_json_line_has_the_standing_fields_and_the_extras() -> None:
    stream = capture("json")
    log.info("claimed %s jobs", 12, extra={"action": "jobs_claimed", "shard": "s0", "count": 12})
    line = only(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "service": "enqueue",
        "instance": "e-1",
        "logger": "services.sample",
        "message": "claimed 12 jobs",
        "action": "jobs_claimed",
        "shard": "s0",
        "count": 12,
    }


def test_json_line_holds_the_traceback_and_stays_one_line() -> None:
    stream = capture("json")
    try:
        raise OSError("away")
    except OSError:
        log.exception("lost the store", extra={"action": "store_lost"})
    assert "OSError: away" in only(stream)["exception"]


def test_value_that_json_does_not_know_is_told_as_text() -> None:
    stream = capture("json")
    log.info("wrote", extra={"path": Path("/x")})
    assert only(stream)["path"] == "/x"


def test_line_inside_a_span_has_its_trace_id(tmp_path: Path) -> None:
    stream = capture("json")
    traced = tracing.configure("enqueue", "e-1", file=str(tmp_path / "spans"))
    with traced.start_span("enqueue") as span:
        log.info("stored")
    traced.close()
    assert only(stream)["trace_id"] == tracing.trace_id_of(span.traceparent)


def test_console_line_is_for_people_and_uncoloured_off_a_terminal() -> None:
    stream = capture("console")
    log.warning("shard is away", extra={"action": "shard_away", "shard": "s0"})
    text = stream.getvalue()
    assert text.rstrip().endswith("warning enqueue shard is away  shard=s0")
    assert "\x1b" not in text


def test_lines_below_the_level_are_dropped() -> None:
    stream = capture("console", level="warning")
    log.info("chatter")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("format", ["json", "console"])
def test_passwords_and_signatures_do_not_reach_the_log(format: Literal["json", "console"]) -> None:
    stream = capture(format)
    log.warning("lost postgresql://app:hunter2@db:5432/jobs", extra={"action": "lost"})
    url = "https://s3/b/k?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2&x=1"
    log.warning("refused", extra={"action": "refused", "url": url})
    assert "hunter2" not in stream.getvalue()
    assert "postgresql://app:***@db:5432/jobs" in stream.getvalue()
    assert "x=1" in stream.getvalue()
