"""What a client sends, and how it tells results, refusals and pages."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from jobmesh import (
    Ack,
    AsyncClient,
    InputError,
    JobFailed,
    JobState,
    Retry,
    WaitTimeout,
    job,
)
from jobmesh.client import EnqueueFailed
from jobmesh.client.convert import to_job
from jobmesh.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Unavailable,
    call_error,
)
from jobmesh.v1 import job_pb2, retry_pb2
from jobmesh.v1.payload_pb2 import Payload

from services.mesh.errors import (
    InvalidField,
)
from services.mesh.testing.faults import FaultProxy, Link
from services.mesh.testing.waiting import eventually
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh, succeed

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


# --- what is sent


async def test_a_connection_that_nobody_answers_is_given_up_within_seconds(address: str) -> None:
    port = int(address.rpartition(":")[2])
    async with FaultProxy(port) as link, AsyncClient(link.address) as client:
        link.become(Link.HANG)
        call = asyncio.create_task(client.enqueue("echo"), name="enqueue")
        await eventually(lambda: bool(link._connections))
        # What was swallowed does not come again: only a new connection helps.
        link.become(Link.PASS)
        async with asyncio.timeout(6):
            await call


async def test_everything_said_about_a_job_reaches_the_mesh(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    when = datetime(2030, 5, 1, tzinfo=UTC)
    handle = await client.enqueue(
        "echo",
        {"n": 1},
        at=when,
        priority=7,
        retry=Retry.fixed("30s", attempts=4)
        .only_on("CommandFailed", "OSError")
        .except_on("ValueError")
        .only_on_exit(75, -9)
        .except_on_exit(2),
        labels={"team": "a"},
        idempotency_key="k1",
        expire=datetime(2030, 5, 2, tzinfo=UTC),
        timeout="2m",
        namespace="acme",
    )
    sent = mesh.calls["Enqueue"][-1]
    assert (sent.namespace, sent.idempotency_key) == ("acme", "k1")
    spec = sent.job
    assert spec.input == Payload(data=b'{"n":1}', content_type="application/json")
    assert spec.schedule_time.ToDatetime(UTC) == when
    assert (spec.priority, dict(spec.labels)) == (7, {"team": "a"})
    assert spec.retry_policy.backoff == retry_pb2.BACKOFF_FIXED
    assert spec.retry_policy.max_attempts == 4
    assert spec.retry_policy.initial_delay.seconds == 30
    assert spec.retry_policy.retryable_types == ["CommandFailed", "OSError"]
    assert spec.retry_policy.non_retryable_types == ["ValueError"]
    assert spec.retry_policy.retryable_exit_codes == [75, -9]
    assert spec.retry_policy.non_retryable_exit_codes == [2]
    assert spec.timeouts.run.seconds == 120
    assert handle.namespace == "acme"


async def test_an_empty_input_is_not_sent_and_delay_is(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    await client.enqueue("echo", delay="5m")
    spec = mesh.calls["Enqueue"][-1].job
    assert not spec.HasField("input")
    assert not spec.HasField("retry_policy")
    assert spec.delay.seconds == 300


@dataclass
class Resize:
    url: str
    width: int = 100


@job("primes", retries=3, timeout=30)
def resize(given: Resize) -> str:
    return given.url


async def test_a_decorated_function_brings_its_type_and_defaults(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    await resize.aenqueue(Resize("u"), client=client)
    spec = mesh.calls["Enqueue"][-1].job
    assert spec.type == "primes"
    assert spec.input.data == b'{"url":"u","width":100}'
    assert spec.retry_policy.max_attempts == 4
    assert spec.retry_policy.backoff == retry_pb2.BACKOFF_EXPONENTIAL
    assert spec.timeouts.run.seconds == 30


@pytest.mark.parametrize(
    ("decorator", "options", "attempts"),
    [
        ({}, {}, None),
        ({"retry": Retry.fixed("5s", attempts=7)}, {}, 7),
        ({"retry": Retry.fixed("5s", attempts=7)}, {"retries": 1}, 2),
        ({"retry": Retry.fixed("5s", attempts=7)}, {"retry": Retry.linear(attempts=3)}, 3),
        ({"retries": 3}, {"retries": 0}, 1),
    ],
)
async def test_what_a_job_says_itself_goes_before_its_functions_word(
    client: AsyncClient,
    mesh: MemoryMesh,
    decorator: dict[str, Any],
    options: dict[str, Any],
    attempts: int | None,
) -> None:
    await client.enqueue(job("primes", **decorator)(lambda: None), **options)
    spec = mesh.calls["Enqueue"][-1].job
    assert spec.HasField("retry_policy") == (attempts is not None)
    assert spec.retry_policy.max_attempts == (attempts or 0)


async def test_an_input_the_handler_cannot_take_is_refused_before_it_is_sent(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    with pytest.raises(InputError, match="url: expected str, got int"):
        await client.enqueue(resize, Resize(url=3))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="widht: unknown field, did you mean 'width'"):
        await client.enqueue(resize, {"url": "u", "widht": 3})
    assert not mesh.calls["Enqueue"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the point
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 3}, "not both"),
        ({"retries": 1, "retry": Retry.none()}, "not both"),
        ({"retries": -1}, "negative"),
        ({"delay": "soon"}, "not a span"),
    ],
)
async def test_contradictions_are_refused_here(
    client: AsyncClient, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await client.enqueue("echo", **options)


def plain(url: str) -> None:
    """A function without @job."""


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((plain, 1), {}, "type: plain is a plain function: decorate it with @job"),
        ((7,), {}, "type: 7 is neither a type's name nor"),
        (("echo",), {"labels": {"a": 1}}, "labels: both of 'a': 1 must be text"),
        (("echo",), {"priority": "high"}, "priority: 'high' is not a number from 0 to 9"),
        (("echo",), {"url": "a.png"}, "url: no option of a job.* one input: pass a dict .* delay,"),
    ],
)
async def test_arguments_of_the_wrong_kind_are_named(
    client: AsyncClient, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        await client.enqueue(*arguments, **options)


# --- errors


async def test_a_refusal_names_field_reason_and_way_out(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    with pytest.raises(NotFound) as caught:
        await client.enqueue("nope")
    assert caught.value.reason == "UNKNOWN_TYPE"
    assert caught.value.metadata == {"type": "nope"}
    assert "(UNKNOWN_TYPE) — start a worker that serves it: jobmesh worker" in str(caught.value)

    mesh.faults["Enqueue"] = [Fault(InvalidField("job.priority", "must be at most 9"))]
    with pytest.raises(InvalidArgument) as invalid:
        await client.enqueue("echo", priority=11)
    assert str(invalid.value) == "job.priority: must be at most 9 (INVALID_FIELD)"
    assert [v.field for v in invalid.value.violations] == ["job.priority"]


async def test_nobody_there_is_said_plainly() -> None:
    async with AsyncClient("127.0.0.1:1", attempts=2) as client:
        with pytest.raises(Unavailable) as caught:
            await client.types()
    assert str(caught.value).startswith("no mesh answers at 127.0.0.1:1 (UNREACHABLE)")
    assert "jobmesh up" in caught.value.hint
    async with AsyncClient("localhost:port", attempts=1) as client:
        with pytest.raises(Unavailable, match="localhost:port is not an address"):
            await client.types()


async def test_every_call_has_a_deadline(address: str, mesh: MemoryMesh) -> None:
    mesh.hanging.add("ListTypes")
    async with AsyncClient(address, timeout=0.2) as impatient:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.2 s"):
            await impatient.types()


# --- results


async def test_result_returns_what_the_handler_returned(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.on_stored = succeed
    handle = await client.enqueue("echo", {"a": [1, 2]})
    assert await handle.result(timeout=5) == {"a": [1, 2]}
    assert await (await client.enqueue("echo", b"\x00raw")).result(timeout=5) == b"\x00raw"
    assert await (await client.enqueue("echo")).result(timeout=5) is None


async def test_a_job_that_did_not_succeed_raises_with_its_failure(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    handle = await client.enqueue("echo")
    failure = job_pb2.Failure(type="ValueError", message="bad image")
    await mesh.advance(handle.id, "DISPATCHED", "FAILED", failure=failure)
    with pytest.raises(JobFailed) as caught:
        await handle.result(timeout=5)
    assert str(caught.value) == f"job {handle.id} is FAILED: ValueError: bad image"
    assert caught.value.job.state is JobState.FAILED


def passed_on(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - it is our own


def test_errors_pass_between_processes() -> None:
    """As they do out of a ProcessPoolExecutor, which breaks if one cannot be unpickled."""
    job = to_job(job_pb2.Job(id="j", state=job_pb2.JOB_STATE_FAILED))
    failed = passed_on(JobFailed(job))
    assert (str(failed), failed.job) == ("job j is FAILED", job)
    acks = [Ack(id="j"), Ack(error=InputError("n: missing"))]
    refused = passed_on(EnqueueFailed(acks))
    assert [ack.ok for ack in refused.acks] == [True, False]
    assert "1 of 2 jobs were not stored; the first: n: missing" in str(refused)
    lost = passed_on(call_error("UNAVAILABLE", "away", reason="DRAINING"))
    assert (type(lost), lost.reason, lost.message) == (Unavailable, "DRAINING", "away")


async def test_waiting_is_bounded_and_the_job_goes_on(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    handle = await client.enqueue("echo")
    with pytest.raises(WaitTimeout, match="did not end within"):
        await handle.wait(timeout=0.1)
    assert mesh.records[handle.id].job.state == job_pb2.JOB_STATE_SCHEDULED


async def test_cancel_says_who_won(client: AsyncClient) -> None:
    handle = await client.enqueue("echo")
    assert await handle.cancel("not needed")
    assert not await client.cancel(handle.id)
    assert (await handle.get()).state is JobState.CANCELLED


# --- lists and schedules


async def test_list_walks_the_pages_and_stops_at_the_limit(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    for n in range(7):
        await client.enqueue("echo" if n % 2 else "primes", labels={"n": str(n)})
    assert [job.labels["n"] async for job in client.list()] == list("6543210")
    assert len(mesh.calls["ListJobs"]) == 4
    assert [job.labels["n"] async for job in client.list(limit=3)] == list("654")
    assert [job.labels["n"] async for job in client.list(types=["echo"])] == list("531")
    assert [job async for job in client.list(states=["running"])] == []
    with pytest.raises(ValueError, match="'asleep' is not a state: use one of scheduled"):
        [job async for job in client.list(states=["asleep"])]


async def test_schedules_live_their_life(client: AsyncClient, mesh: MemoryMesh) -> None:
    made = await client.schedules.create("n1", "echo", {"x": 1}, every="5m")
    assert (made.name, made.type, made.rules) == ("n1", "echo", ("every 300s",))
    assert made.next_time == datetime(2030, 1, 1, tzinfo=UTC)
    cron = await client.schedules.create("n2", "echo", cron="30 1 * * *", time_zone="Europe/Berlin")
    assert cron.rules == ("cron 30 1 * * * Europe/Berlin",)
    await client.schedules.create("n3", "echo", every=60)
    assert [s.name async for s in client.schedules.list()] == ["n1", "n2", "n3"]
    assert (await client.schedules.pause("n1", note="holiday")).paused
    assert (await client.schedules.get("n1")).pause_note == "holiday"
    assert not (await client.schedules.resume("n1")).paused
    await client.schedules.delete("n1")
    with pytest.raises(NotFound, match="SCHEDULE_NOT_FOUND"):
        await client.schedules.get("n1")
    with pytest.raises(ValueError, match="every or cron"):
        await client.schedules.create("n4", "echo")


async def test_creating_a_schedule_again_is_safe(client: AsyncClient, mesh: MemoryMesh) -> None:
    mesh.faults["CreateSchedule"] = [Fault(UNAVAILABLE, after=True)]
    assert (await client.schedules.create("n", "echo", every=60)).name == "n"
    with pytest.raises(AlreadyExists, match="SCHEDULE_EXISTS"):
        await client.schedules.create("n", "primes", every=60)
