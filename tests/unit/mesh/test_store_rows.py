"""A row becomes a record field by field, whatever stands beside it."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from uuid import UUID

from services.mesh.jobs.model import JobRecord, Payload, Progress, Timeouts
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import UniquePolicy
from services.mesh.store.rows import job_record

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = next(iter(UniquePolicy))


def test_every_column_of_a_job_comes_back_under_its_own_name():
    times = {
        name: START + timedelta(seconds=place)
        for place, name in enumerate(
            ("due", "first_due", "create", "dispatch", "start", "end", "expire", "nominal")
        )
    }
    row = (
        *(UUID(int=1), "tenant", "render", 3, 4, 5, 6, 7, 8, "w-9"),
        *(times[n] for n in ("due", "first_due", "create", "dispatch", "start", "end", "expire")),
        *({"run": 1000}, None, {"a": "b"}, None, "key", "00-trace"),
        *(UUID(int=2), times["nominal"], UUID(int=3)),
        *("in/type", None, 2, "out/type", None, 3),
        *("nightly", "lane", "only-one", POLICY.value, None, b"in", b"out"),
        *(1.0, 2.0, "half", START),
    )
    record = job_record(row)
    assert {field.name: getattr(record, field.name) for field in fields(JobRecord)} == {
        "id": UUID(int=1),
        "namespace": "tenant",
        "type": "render",
        "state": JobState.RUNNING,
        "version": 4,
        "priority": 5,
        "attempt": 6,
        "losses": 7,
        "fence": 8,
        "worker_id": "w-9",
        "due_time": times["due"],
        "first_due_time": times["first_due"],
        "create_time": times["create"],
        "dispatch_time": times["dispatch"],
        "start_time": times["start"],
        "end_time": times["end"],
        "expire_time": times["expire"],
        "timeouts": Timeouts(run=timedelta(seconds=1)),
        "retry": None,
        "labels": {"a": "b"},
        "input": Payload.inline(b"in", "in/type"),
        "output": Payload.inline(b"out", "out/type"),
        "failure": None,
        "idempotency_key": "key",
        "traceparent": "00-trace",
        "schedule_id": UUID(int=2),
        "nominal_time": times["nominal"],
        "origin_id": UUID(int=3),
        "schedule": "nightly",
        "progress": Progress(1.0, 2.0, "half", START),
        "concurrency_key": "lane",
        "unique_key": "only-one",
        "unique_policy": POLICY,
        "dependencies": (),
    }
