"""Traces: one trace id from the client's call to the commit of the result."""

from __future__ import annotations

import json
from typing import Any

from jobmesh.client import AsyncClient
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE

TRACE, CALLER = "5f" * 16, "c0" * 8
ENQUEUE = "jobmesh.v1.EnqueueService/Enqueue"
PUT_JOBS = "jobmesh.v1.OrchestratorService/PutJobs"


class Spans:
    """What the processes of a mesh have written so far."""

    def __init__(self, mesh: RunningMesh) -> None:
        lines = (mesh.home / "traces").read_text().splitlines()
        self.all: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def find(self, service: str | None, name: str, kind: str, **given: object) -> dict[str, Any]:
        """The one such span; of any service, where none is named."""
        wanted = {"name": name, "kind": kind, **given}
        if service is not None:
            wanted["service"] = service
        (span,) = (span for span in self.all if wanted.items() <= span.items())
        return span


async def test_one_trace_leads_from_the_call_to_the_commit(
    mesh: RunningMesh, client: AsyncClient
) -> None:
    answer = await client.stub.Enqueue(
        pb.EnqueueRequest(job=job_pb2.JobSpec(type="echo")),
        metadata=(("traceparent", f"00-{TRACE}-{CALLER}-01"),),
    )
    await client.job(answer.job.id).wait(PATIENCE)
    await eventually(lambda: _committed(mesh), PATIENCE)
    spans, same = Spans(mesh), {"trace_id": TRACE}

    enqueue = spans.find("enqueue", ENQUEUE, "server", **same)
    assert enqueue["parent_span_id"] == CALLER
    call = spans.find("enqueue", PUT_JOBS, "client", **same)
    assert call["parent_span_id"] == enqueue["span_id"]
    put = spans.find("orchestrator", PUT_JOBS, "server", **same)
    assert put["parent_span_id"] == call["span_id"]
    run = spans.find("worker", "run echo", "consumer", **same)
    assert run["parent_span_id"] == enqueue["span_id"]
    assert run["attributes"]["jobmesh.job_id"] == answer.job.id
    assert run["attributes"]["jobmesh.outcome"] == "succeeded"
    commit = spans.find("orchestrator", "commit", "internal", **same)
    assert commit["parent_span_id"] == run["span_id"]
    assert commit["attributes"]["jobmesh.verdict"] == "committed"

    # A dispatch carries jobs of many traces, so it has its own and links to theirs. Who stored the
    # job sends it, if nothing waits before it; else a scheduler does.
    dispatch = spans.find(None, "dispatch", "producer", links=[TRACE])
    assert dispatch["service"] in ("orchestrator", "scheduler")
    assert put["start_time"] < dispatch["start_time"] < run["start_time"] < commit["end_time"]
    job = await client.get(answer.job.id)
    assert isinstance(job.message, job_pb2.Job)
    assert job.message.traceparent.startswith(f"00-{TRACE}-{enqueue['span_id']}")


def _committed(mesh: RunningMesh) -> bool:
    return any(s["name"] == "commit" and s["trace_id"] == TRACE for s in Spans(mesh).all)
