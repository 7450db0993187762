"""One trace across processes' worth of hops, by gRPC metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb

from services.mesh.errors import JobNotFound
from services.mesh.telemetry import tracing
from services.mesh.telemetry.tracing import trace_id_of
from tests.integration.chassis_mesh import JOB_ID, get_job, mesh


def spans_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_one_trace_connects_client_server_and_the_next_hop(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    front_tracing = tracing.configure("enqueue", "e-1", file=str(file))
    back_tracing = tracing.configure("orchestrator", "o-1", file=str(file))
    async with mesh(tracing=front_tracing) as front, mesh(tracing=back_tracing) as back:
        # The front's own calls go out through a channel that records the front's spans.
        seen: list[str] = []

        async def get(request: Any, context: Any) -> Any:
            seen.append(back_tracing.current_traceparent())
            return pb.GetJobResponse()

        async def forward(request: Any, context: Any) -> Any:
            return await back.stub.GetJob(request)

        back.sample.on_get, front.sample.on_get = get, forward
        with front_tracing.start_span("submit") as root:
            await front.stub.GetJob(get_job())
    for traced in (front_tracing, back_tracing):
        traced.close()
    spans = spans_in(file)
    assert {span["trace_id"] for span in spans} == {trace_id_of(root.traceparent)}
    by_id = {span["span_id"]: span for span in spans}
    path = []
    span: dict[str, Any] | None = by_id[seen[0].split("-")[2]]
    while span is not None:
        path.append((span["service"], span["kind"]))
        span = by_id.get(span["parent_span_id"])
    assert path == [
        ("orchestrator", "server"),
        ("orchestrator", "client"),
        ("enqueue", "server"),
        ("enqueue", "client"),
        ("enqueue", "internal"),
    ]


async def test_failed_call_fails_its_spans(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    traced = tracing.configure("enqueue", "e-1", file=str(file))
    async with mesh(tracing=traced) as m:

        async def get(request: Any, context: Any) -> Any:
            raise JobNotFound(JOB_ID)

        m.sample.on_get = get
        with pytest.raises(JobNotFound):
            await m.stub.GetJob(get_job())
    traced.close()
    spans = {span["kind"]: span for span in spans_in(file)}
    assert spans["server"]["status"] == spans["client"]["status"] == "ERROR"
    assert spans["server"]["attributes"]["rpc.response.status_code"] == "NOT_FOUND"


async def test_untraced_call_sends_no_trace_context() -> None:
    async with mesh() as m:
        seen: list[str] = []

        async def get(request: Any, context: Any) -> Any:
            seen.extend(key for key, _ in context.invocation_metadata())
            return pb.GetJobResponse()

        m.sample.on_get = get
        await m.stub.GetJob(get_job())
    assert "traceparent" not in seen
