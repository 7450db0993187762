from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.mesh.telemetry import tracing
from services.mesh.telemetry.tracing import NO_SPAN, Tracing, trace_id_of

REMOTE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
Spans = Callable[[], dict[str, dict[str, Any]]]


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Tracing]:
    made = tracing.configure("worker", "w-1", file=str(tmp_path / "spans.jsonl"))
    yield made
    made.close()


@pytest.fixture
def spans(tmp_path: Path) -> Spans:
    def read() -> dict[str, dict[str, Any]]:
        lines = (tmp_path / "spans.jsonl").read_text().splitlines()
        return {span["name"]: span for span in map(json.loads, lines)}

    return read


def test_tracing_is_off_without_an_exporter() -> None:
    off = tracing.configure("worker", "w-1")
    assert not off.enabled
    with off.start_span("run", parent=REMOTE) as span:
        assert span is NO_SPAN
        span.set("key", "value")
        assert off.current_traceparent() == ""
    off.close()


def test_untraced_process_does_not_import_the_sdk() -> None:
    code = (
        "import sys, services.mesh.runtime; from services.mesh.telemetry import tracing;"
        "tracing.configure('a', 'b').open_span('x').end();"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    root = str(Path(__file__).parents[3])
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_spans_nest_and_share_a_trace(traced: Tracing, spans: Spans) -> None:
    with traced.start_span("outer"), traced.start_span("inner"):
        pass
    outer, inner = spans()["outer"], spans()["inner"]
    assert inner["trace_id"] == outer["trace_id"]
    assert inner["parent_span_id"] == outer["span_id"]
    assert outer["parent_span_id"] == ""


def test_traceparent_of_another_process_is_continued(traced: Tracing, spans: Spans) -> None:
    with traced.start_span("run", "consumer", parent=REMOTE) as span:
        assert traced.current_traceparent() == span.traceparent
    assert traced.current_traceparent() == ""
    told = spans()["run"]
    assert (told["trace_id"], told["parent_span_id"]) == ("a" * 32, "b" * 16)
    assert told["kind"] == "consumer"
    assert told["service"] == "worker"


def test_links_and_attributes_are_recorded(traced: Tracing, spans: Spans) -> None:
    with traced.start_span("claim", links=[REMOTE, "nonsense", ""]) as span:
        span.set("jobmesh.count", 12)
    told = spans()["claim"]
    assert told["links"] == ["a" * 32]
    assert told["attributes"] == {"jobmesh.count": 12}


def test_exception_that_leaves_the_block_fails_the_span(traced: Tracing, spans: Spans) -> None:
    with pytest.raises(OSError, match="away"), traced.start_span("read"):
        raise OSError("away")
    assert spans()["read"]["status"] == "ERROR"


def test_caller_that_does_not_sample_is_respected(traced: Tracing, tmp_path: Path) -> None:
    with traced.start_span("run", parent=REMOTE[:-2] + "00") as span:
        assert span.traceparent.endswith("-00")
        assert trace_id_of(span.traceparent) == "a" * 32
    assert (tmp_path / "spans.jsonl").read_text() == ""


def test_empty_parent_begins_a_new_trace(traced: Tracing, spans: Spans) -> None:
    with traced.start_span("outer"), traced.start_span("apart", parent=""):
        pass
    assert spans()["apart"]["trace_id"] != spans()["outer"]["trace_id"]


@pytest.mark.parametrize("text", ["", "00-zz-11-01", "a" * 55, REMOTE.upper()])
def test_malformed_traceparent_has_no_trace_id(text: str) -> None:
    assert trace_id_of(text) == ""
