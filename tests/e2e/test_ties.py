"""Chains, fan-out, fan-in and unique keys in the whole mesh."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from jobmesh import After, JobFailed, JobState, NewJob, Unique
from jobmesh.client import AsyncClient
from jobmesh.errors import AlreadyExists, CallError, InvalidArgument, NotFound
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2
from localmesh.harness import RunningMesh

from services.mesh.testing.waiting import eventually
from tests.e2e.hands import PATIENCE, Gates, WorkerRoom, aside, types_known

COMMAND = str(Path(sys.executable).with_name("jobmesh"))
NOBODY = "01890000-0000-7000-8000-000000000000"


# --- dependencies


async def test_a_chain_runs_in_order(client: AsyncClient) -> None:
    first = await client.enqueue("echo", 1, delay="200ms")
    second = await client.enqueue("echo", 2, after=first)
    third = await client.enqueue("echo", 3, after=[second])
    assert (await third.get()).state is JobState.BLOCKED
    assert await third.result(PATIENCE) == 3
    jobs = [await handle.get() for handle in (first, second, third)]
    for before, behind in pairwise(jobs):
        assert before.end_time is not None
        assert behind.start_time is not None
        assert before.end_time <= behind.start_time
    assert [one.job_id for one in jobs[2].message.spec.dependencies] == [second.id]  # type: ignore[attr-defined]


async def test_fan_out_and_fan_in_over_all_shards(client: AsyncClient) -> None:
    source = await client.enqueue("echo", "source", delay="300ms")
    many = [NewJob("echo", n, after=[source.id]) for n in range(30)]
    acks = await client.enqueue_many(many)
    ids = [ack.id for ack in acks]
    shards = {(await client.get(job_id)).shard for job_id in ids}
    assert len(shards) > 1
    sink = await client.enqueue("echo", "sink", after=ids)
    assert await sink.result(PATIENCE) == "sink"
    end = await sink.get()
    for job_id in ids:
        job = await client.get(job_id)
        assert job.state is JobState.SUCCEEDED
        assert end.start_time >= job.end_time  # type: ignore[operator]


async def test_each_policy_after_a_parent_that_failed(client: AsyncClient) -> None:
    parent = await client.enqueue("crash", 3, delay="300ms")
    ways = ("cancel", "run", "fail")
    children = [
        await client.enqueue("echo", way, after=After(parent, way))  # type: ignore[arg-type]
        for way in ways
    ]
    ends = [await child.wait(PATIENCE) for child in children]
    assert [job.state for job in ends] == ["CANCELLED", "SUCCEEDED", "FAILED"]
    for job in (ends[0], ends[2]):
        assert job.failure is not None
        assert job.failure.type == "ParentFailed"
        assert parent.id in job.failure.message
    with pytest.raises(JobFailed, match=parent.id):
        await children[2].result(PATIENCE)


async def test_parents_that_have_ended_already(client: AsyncClient) -> None:
    well = await client.enqueue("echo", 1)
    await well.result(PATIENCE)
    badly = await client.enqueue("echo", 1, delay="1h")
    await badly.cancel()
    runs = await client.enqueue("echo", "runs", after=[well, After(badly, "run")])
    assert await runs.result(PATIENCE) == "runs"
    assert (await runs.get()).version < 5  # it was never BLOCKED
    ended = await client.enqueue("echo", "never", after=badly)
    assert (await ended.get()).state is JobState.CANCELLED


async def test_cancelling_a_parent_goes_down_the_chain(client: AsyncClient) -> None:
    first = await client.enqueue("echo", 1, delay="1h")
    second = await client.enqueue("echo", 2, after=first)
    third = await client.enqueue("echo", 3, after=After(second, "fail"))
    found = await client.explain(third.id)
    assert (found.reason, found.waits_for) == ("BLOCKED", (second.id,))
    assert second.id in found.text
    assert "BLOCKED" in found.text
    assert await first.cancel()
    assert (await third.wait(PATIENCE)).state is JobState.FAILED
    assert (await second.get()).state is JobState.CANCELLED


async def test_a_watch_sees_a_blocked_job_released(client: AsyncClient) -> None:
    parent = await client.enqueue("echo", 1, delay="500ms")
    child = await client.enqueue("echo", 2, after=parent)
    seen = [event async for event in client.watch(child.id)]
    assert seen[0].state is JobState.BLOCKED
    assert "UNBLOCKED" in [event.reason for event in seen]
    assert [event.version for event in seen] == list(range(1, len(seen) + 1))


async def test_what_cannot_be_waited_for_is_refused_and_nothing_is_stored(
    client: AsyncClient,
) -> None:
    label = {"suite": "refused-ties"}
    other = await client.enqueue("echo", 1, delay="1h", namespace="other")
    twice = await client.enqueue("echo", 1, delay="1h")
    refused: list[tuple[type[CallError], object]] = [
        (NotFound, NOBODY),
        (NotFound, other.id),
        (InvalidArgument, "nonsense"),
        (InvalidArgument, str(UUID(int=4))),
        (InvalidArgument, [twice, twice.id]),
        (InvalidArgument, [NOBODY[:-3] + f"{n:03}" for n in range(101)]),
    ]
    for kind, after in refused:
        with pytest.raises(kind) as caught:
            await client.enqueue("echo", 1, after=after, labels=label)  # type: ignore[arg-type]
        assert "dependencies" in str(caught.value)
    acks = await client.enqueue_many(
        [NewJob("echo", 1, after=NOBODY), NewJob("echo", 2)], raise_errors=False
    )
    assert [ack.ok for ack in acks] == [False, True]
    assert isinstance(acks[0].error, NotFound)
    assert await client.count(labels=label) == {}
    await other.cancel()
    await twice.cancel()


async def test_a_template_has_no_ties(client: AsyncClient) -> None:
    for ties in ({"after": NOBODY}, {"unique": "k"}):
        with pytest.raises(InvalidArgument, match="the jobs of a schedule"):
            await client.schedules.create("tied", "echo", 1, every="1h", **ties)  # type: ignore[arg-type]


# --- unique keys


async def test_a_unique_key_is_kept_replaced_refused_and_freed(client: AsyncClient) -> None:
    first = await client.enqueue("echo", "first", delay="1h", unique="report")
    kept = await client.enqueue("echo", "second", unique="report")
    assert (kept.id, kept.existing) == (first.id, True)
    with pytest.raises(AlreadyExists) as caught:
        await client.enqueue("echo", "third", unique=Unique("report", "refuse"))
    assert caught.value.reason == "UNIQUE_CONFLICT"
    assert caught.value.metadata["job_id"] == first.id
    replaced = await client.enqueue(
        "echo", "fourth", priority=3, unique=Unique("report", "replace")
    )
    assert replaced.id == first.id
    assert await first.result(PATIENCE) == "fourth"
    job = await first.get()
    spec = job.message.spec  # type: ignore[attr-defined]
    assert (job.priority, spec.unique_key) == (3, "report")
    assert spec.unique_policy == job_pb2.UNIQUE_POLICY_REPLACE
    again = await client.enqueue("echo", "fifth", unique="report")
    assert again.id != first.id
    assert await again.result(PATIENCE) == "fifth"


async def test_racing_submitters_of_one_key_get_one_job(client: AsyncClient) -> None:
    handles = await asyncio.gather(
        *(client.enqueue("echo", n, delay="1h", unique="race") for n in range(20))
    )
    assert len({handle.id for handle in handles}) == 1
    assert sum(not handle.existing for handle in handles) == 1
    await handles[0].cancel()


async def test_a_running_holder_is_not_replaced_and_a_retry_needs_the_key(
    client: AsyncClient, gates: Gates
) -> None:
    first = await client.enqueue("gated", gates.input, unique="run")
    await eventually(gates.starts, PATIENCE)
    kept = await client.enqueue("gated", {"folder": "x"}, unique=Unique("run", "replace"))
    assert kept.id == first.id
    await first.cancel()
    second = await client.enqueue("echo", 1, delay="1h", unique="run")
    with pytest.raises(AlreadyExists) as caught:
        await client.retry(first.id)
    assert caught.value.metadata["job_id"] == second.id
    await second.cancel()


async def test_garbage_about_ties_is_refused_by_name(client: AsyncClient) -> None:
    spec = {"type": "echo"}
    bad = {
        "unique_key": {"unique_key": "x" * 201},
        "unique_policy": {"unique_key": "k", "unique_policy": 99},
        "job.unique_policy": {"unique_policy": 2},
        "on_failure": {"dependencies": [{"job_id": NOBODY, "on_failure": 77}]},
        "dependencies[0].job_id": {"dependencies": [{"job_id": "a\0b"}]},
        "REPLACE goes without": {
            "unique_key": "k",
            "unique_policy": 2,
            "dependencies": [{"job_id": NOBODY}],
        },
    }
    for field, given in bad.items():
        request = pb.EnqueueRequest(job={**spec, **given})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument) as caught:
            await client._session.call(client.stub.Enqueue, request)
        assert field in str(caught.value), str(caught.value)


# --- the command line


async def test_after_and_unique_on_the_command_line(mesh: RunningMesh, client: AsyncClient) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "JOBMESH_ADDRESS": mesh.enqueue_target, "COLUMNS": "200"}
        return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=env)

    parent = await client.enqueue("echo", 1, delay="1h")
    made = await aside(
        run, "submit", "echo", "--after", f"{parent.id}:run", "--unique", "a:b:refuse"
    )
    assert made.returncode == 0, made.stderr
    child = made.stdout.strip()
    shown = await aside(run, "get", child)
    assert "a:b" in shown.stdout
    assert parent.id in shown.stdout
    told = await aside(run, "explain", child)
    assert f"BLOCKED: it waits for job {parent.id}" in told.stdout
    refused = await aside(run, "submit", "echo", "--unique", "a:b:refuse")
    assert refused.returncode != 0
    assert child in refused.stderr
    wrong = await aside(run, "submit", "echo", "--after", f"{parent.id}:never")
    assert (wrong.returncode, "--after" in wrong.stderr) == (2, True)
    await parent.cancel()
    assert (await client.job(child).wait(PATIENCE)).state is JobState.SUCCEEDED


# --- faults


async def test_a_release_survives_the_death_of_the_orchestrator_and_of_a_scheduler(
    storm: RunningMesh, room: WorkerRoom, storm_client: AsyncClient, gates: Gates
) -> None:
    """Word of the end is lost with those who would act on it; the rounds find it in the row."""
    client = storm_client
    await room.ready("--types", "gated,echo")
    await types_known(client, "gated", "echo")
    parents = [await client.enqueue("gated", gates.input) for _ in range(4)]
    children = [await client.enqueue("echo", n, after=p) for n, p in enumerate(parents)]
    last = await client.enqueue("echo", "last", after=children)
    await gates.started(4)
    killed = ("orchestrator", "scheduler")
    try:
        for name in killed:
            await aside(storm.kill, name)
        gates.open()
    finally:
        for name in killed:
            await aside(storm.start, name)
    assert await last.result(PATIENCE) == "last"
    for child in children:
        assert (await child.get()).state is JobState.SUCCEEDED


async def test_an_end_that_nobody_was_told_of_is_found_in_the_row(
    storm: RunningMesh, room: WorkerRoom, storm_client: AsyncClient
) -> None:
    """The commit without the word: as if its Orchestrator had died right after it."""
    client = storm_client
    await room.ready("--types", "echo")
    await types_known(client, "echo")
    parent = await client.enqueue("echo", 1, delay="1h")
    child = await client.enqueue("echo", 2, after=After(parent, "run"))
    assert (await child.get()).state is JobState.BLOCKED
    job = await parent.get()
    await _cancel_in_silence(storm, job.shard, UUID(parent.id))

    async def ended() -> bool:
        return (await child.get()).state is JobState.SUCCEEDED

    await eventually(ended, PATIENCE)


async def _cancel_in_silence(storm: RunningMesh, shard: str, job_id: UUID) -> None:
    from services.mesh.store.postgres import PostgresShard

    store = PostgresShard(shard, storm.shard_dsns[shard])
    await store.open()
    try:
        await store.cancel([job_id])
    finally:
        await store.close()
