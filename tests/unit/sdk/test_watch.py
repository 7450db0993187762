"""Watches: gap-free and without duplicates, whatever happens to the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest
from jobmesh import AsyncClient, JobEvent, JobState
from jobmesh.client.caller import Caller
from jobmesh.client.convert import to_filter
from jobmesh.client.watch import SeenVersions, Watch
from jobmesh.errors import NotFound, Unavailable
from jobmesh.v1 import job_pb2
from jobmesh.v1.enqueue_service_pb2 import WatchJobsRequest, WatchJobsResponse

from tests.unit.sdk.memory_mesh import MemoryMesh

LIFE = ("DISPATCHED", "RUNNING", "SCHEDULED", "DISPATCHED", "RUNNING", "SUCCEEDED")


async def follow(client: AsyncClient, *job_ids: str) -> list[JobEvent]:
    return [event async for event in client.watch(*job_ids)]


async def live(mesh: MemoryMesh, job_id: str) -> None:
    """One transition at a time, each after the one before was heard of."""
    for state in LIFE:
        await mesh.advance(job_id, state)
        await asyncio.sleep(0)


async def watched_life(client: AsyncClient, mesh: MemoryMesh) -> list[JobEvent]:
    handle = await client.enqueue("echo")
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(follow(client, handle.id))
        group.create_task(live(mesh, handle.id))
    return watching.result()


def versions(events: list[JobEvent]) -> list[int]:
    return [event.version for event in events]


async def test_a_watch_ends_with_the_job(client: AsyncClient, mesh: MemoryMesh) -> None:
    events = await watched_life(client, mesh)
    seen = versions(events)
    assert seen == list(range(seen[0], 8))
    assert events[0].reason == "SNAPSHOT"
    assert events[-1].state is JobState.SUCCEEDED


def every(number: int, cut: str) -> Callable[[int], str]:
    return lambda sent: cut if sent == number else ""


@pytest.mark.parametrize("cut", ["UNAVAILABLE", "CANCELLED", "drain", "slow"])
@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_cut_stream_is_resumed_without_gap_or_duplicate(
    client: AsyncClient, mesh: MemoryMesh, cut: str, after: int
) -> None:
    mesh.cut_watch = every(after, cut)
    seen = versions(await watched_life(client, mesh))
    assert seen == list(range(seen[0], 8))


@pytest.mark.parametrize("cut", ["UNAVAILABLE", "drain"])
async def test_responses_without_tokens_are_not_repeated_after_a_cut(
    client: AsyncClient, mesh: MemoryMesh, cut: str
) -> None:
    mesh.omit_tokens = True
    mesh.cut_watch = every(2, cut)
    handle = await client.enqueue("echo")
    await mesh.advance(handle.id, "DISPATCHED")
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(follow(client, handle.id))
        group.create_task(live(mesh, handle.id))
    seen = versions(watching.result())
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert seen[-1] == 8


async def test_an_expired_token_starts_over_from_a_snapshot(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    mesh.tokens_expire = True
    mesh.cut_watch = every(2, "UNAVAILABLE")
    seen = versions(await watched_life(client, mesh))
    assert seen == sorted(set(seen))
    assert seen[-1] == 7


async def test_several_jobs_are_watched_to_the_last(client: AsyncClient, mesh: MemoryMesh) -> None:
    handles = [await client.enqueue("echo", n) for n in range(3)]
    mesh.cut_watch = every(4, "UNAVAILABLE")
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(follow(client, *(h.id for h in handles)))
        for handle in handles:
            group.create_task(live(mesh, handle.id))
    for handle in handles:
        seen = [e.version for e in watching.result() if e.job_id == handle.id]
        assert seen == list(range(seen[0], 8))


async def test_a_filter_is_watched_until_the_watcher_leaves(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    wanted = await client.enqueue("echo", labels={"team": "a"})
    await client.enqueue("echo", labels={"team": "b"})
    watch = client.watch(filter=to_filter(labels={"team": "a"}))
    assert (await anext(watch)).job_id == wanted.id
    await mesh.advance(wanted.id, "CANCELLED")
    event = await anext(watch)
    assert (event.state, event.reason) == (JobState.CANCELLED, "CANCELLED")
    later = await client.enqueue("echo", labels={"team": "a"})
    assert (await anext(watch)).job_id == later.id


async def test_a_job_that_ended_before_is_one_snapshot(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    handle = await client.enqueue("echo")
    failure = job_pb2.Failure(type="ValueError", message="no")
    await mesh.advance(handle.id, "DISPATCHED", "FAILED", failure=failure)
    events = [event async for event in handle.events()]
    assert [(e.reason, e.state) for e in events] == [("SNAPSHOT", JobState.FAILED)]
    assert str(events[0].failure) == "ValueError: no"


async def test_an_unknown_job_is_refused(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="JOB_NOT_FOUND"):
        await follow(client, "00000000-0000-0000-0000-000000000000")


async def test_patience_ends_when_nobody_answers() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match="no mesh answers"):
            [event async for event in client.watch("x", patience=0.3)]


def test_remembered_versions_are_bounded() -> None:
    seen = SeenVersions(limit=2)
    assert [seen.is_news("a", 1), seen.is_news("a", 1), seen.is_news("a", 2)] == [True, False, True]
    assert seen.is_news("b", 1)
    assert seen.is_news("c", 1)
    assert seen.is_news("a", 1), "forgotten, since two others came after it"


class Wire:
    """A stub and its only stream: it reads what the test puts on it, and then its end."""

    def __init__(self) -> None:
        self.coming: asyncio.Future[WatchJobsResponse] = asyncio.Future()
        self.read_once = False

    def WatchJobs(self, request: WatchJobsRequest, timeout: float) -> Wire:
        return self

    async def read(self) -> WatchJobsResponse | object:
        if self.read_once:
            return grpc.aio.EOF
        self.read_once = True
        return await self.coming

    def cancel(self) -> None:
        pass


async def test_a_wait_that_times_out_as_a_heartbeat_comes_has_timed_out() -> None:
    wire = Wire()
    watch = Watch(Caller(), cast("Any", wire), WatchJobsRequest(job_ids=["j"]))
    waiting = asyncio.ensure_future(anext(watch.responses()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    wire.coming.set_result(WatchJobsResponse())
    await asyncio.sleep(0)  # the response is there, its reader has not gone on
    waiting.cancel()
    done, _ = await asyncio.wait({waiting}, timeout=1)
    assert done
    assert waiting.cancelled()


async def test_a_watch_ends_with_a_job_whose_id_was_given_in_capitals() -> None:
    wire, job_id = Wire(), "01a1ed40-d6d2-7e78-84bf-c0292981034d"
    watch = Watch(Caller(), cast("Any", wire), WatchJobsRequest(job_ids=[job_id.upper()]))
    ended = job_pb2.Job(id=job_id, version=4, state=job_pb2.JOB_STATE_SUCCEEDED)
    wire.coming.set_result(WatchJobsResponse(snapshot=ended))
    async with asyncio.timeout(5):
        assert len([response async for response in watch.responses()]) == 1
