"""The blocking client is the async one, waited for."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from jobmesh import AsyncClient, Client, JobFailed, JobState, NewJob
from jobmesh.client import AsyncJobHandle, AsyncSchedules, JobHandle
from jobmesh.client.blocking import Schedules
from jobmesh.errors import NotFound
from jobmesh.options import EnqueueOptions
from jobmesh.v1.job_pb2 import Failure

from tests.unit.sdk.memory_mesh import MemoryMesh, succeed

T = TypeVar("T")


async def use(address: str, work: Callable[[Client], T]) -> T:
    """Runs blocking code beside the loop that serves it."""

    def run() -> T:
        with Client(address) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_a_job_is_submitted_followed_and_read(address: str, mesh: MemoryMesh) -> None:
    mesh.on_stored = succeed

    def work(client: Client) -> tuple[object, list[JobState]]:
        handle = client.enqueue("echo", {"x": 1}, labels={"a": "b"})
        return handle.result(timeout=5), [event.state for event in handle.events()]

    assert await use(address, work) == ({"x": 1}, [JobState.SUCCEEDED])


async def test_errors_come_out_as_they_are(address: str, mesh: MemoryMesh) -> None:
    def work(client: Client) -> None:
        with pytest.raises(NotFound):
            client.enqueue("nope")
        with pytest.raises(NotFound):
            list(client.watch("00000000-0000-0000-0000-000000000000"))

    await use(address, work)


async def test_a_failed_job_raises(address: str, mesh: MemoryMesh) -> None:
    def fail(mesh: MemoryMesh, job_id: str) -> None:
        mesh.move(job_id, "FAILED", failure=Failure(type="X"))

    mesh.on_stored = fail

    def work(client: Client) -> None:
        with pytest.raises(JobFailed, match="FAILED: X"):
            client.enqueue("echo").result(timeout=5)

    await use(address, work)


async def test_lists_and_many(address: str, mesh: MemoryMesh, tmp_path: Path) -> None:
    mesh.on_stored = succeed

    def work(client: Client) -> None:
        acks = client.enqueue_many([NewJob("echo", n) for n in range(5)])
        assert len(list(client.list())) == 5
        assert [job.id for job in client.list(limit=1)] == [acks[-1].id]
        client.download(acks[0].id, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == b"0"
        assert client.schedules.create("s", "echo", every=60).name == "s"
        assert [s.name for s in client.schedules.list()] == ["s"]
        assert list(client.types()) == ["echo", "primes"]

    await use(address, work)


async def test_leaving_an_iterator_early_ends_its_stream(address: str, mesh: MemoryMesh) -> None:
    def work(client: Client) -> JobState:
        events = client.enqueue("echo").events()
        first = next(events)
        events.close()  # type: ignore[attr-defined]
        return first.state

    assert await use(address, work) is JobState.SCHEDULED


async def test_calling_back_from_its_own_thread_is_refused_not_a_deadlock(address: str) -> None:
    def work(client: Client) -> None:
        def jobs() -> Iterator[NewJob]:
            client.types()
            yield NewJob("echo")

        with pytest.raises(RuntimeError, match="cannot wait for itself"):
            client.enqueue_many(jobs())

    await use(address, work)


def test_a_closed_client_leaves_no_thread_and_closes_twice() -> None:
    before = threading.active_count()
    client = Client("127.0.0.1:1")
    assert threading.active_count() == before + 1
    client.close()
    client.close()
    assert threading.active_count() == before


def test_who_waits_in_another_thread_hears_that_the_client_was_closed() -> None:
    client = Client("127.0.0.1:1", attempts=1000)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            client.job("01a1ec14-e1db-724c-a7a3-41dd8534be52").wait()
        except BaseException as error:
            told.append(error)

    other = threading.Thread(target=wait, daemon=True)
    other.start()
    other.join(0.3)  # it is in a call, or rests between two
    client.close()
    other.join(10)
    assert not other.is_alive()
    assert told


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.enqueue("echo"),
        lambda client: list(client.list()),
        lambda client: client.schedules.get("nightly"),
        lambda client: client.job("x").result(),
    ],
)
def test_a_closed_client_says_that_it_is(call: Callable[[Client], object]) -> None:
    with Client("127.0.0.1:1") as client:
        pass
    with pytest.raises(RuntimeError, match="this Client is closed"):
        call(client)


INTERRUPTED = """
import asyncio, os, signal
from jobmesh.client.blocking import LoopThread

async def events():
    try:
        yield "first"
        os.kill(os.getpid(), signal.SIGINT)  # while somebody waits for the next
        await asyncio.Event().wait()
    finally:
        for _ in range(10):  # an end takes a while: batches under way, a stream to close
            await asyncio.sleep(0)
        print("ended")

thread = LoopThread("test")
try:
    for event in thread.iterate(events()):
        print(event)
except KeyboardInterrupt:
    print("interrupted")
thread.stop()
"""


def test_ctrl_c_in_an_iterator_is_heard_when_its_stream_has_ended() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout.split(), ran.stderr) == (["first", "ended", "interrupted"], "")


FORKS = """
import os, signal, sys
from jobmesh import Client
client = Client("127.0.0.1:1")
if os.fork() == 0:
    signal.alarm(20)  # who hangs is killed
    try:
        client.types()
    except RuntimeError as error:
        client.close()
        sys.exit("before a fork" not in str(error))
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_client_that_was_made_before_a_fork_says_so_instead_of_hanging() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60, check=False).returncode == 0


FORKS_ANEW = """
import os, signal, sys
from jobmesh import Client, errors
with Client("127.0.0.1:1", attempts=1) as client:
    try:
        client.types()
    except errors.Unavailable:
        pass
if os.fork() == 0:
    signal.alarm(20)  # who hangs is killed
    try:
        Client("127.0.0.1:1", attempts=1).types()
    except RuntimeError as error:
        sys.exit("fork" not in str(error))
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_new_client_in_a_child_of_one_that_has_used_grpc_says_so_instead_of_hanging() -> None:
    run = subprocess.run([sys.executable, "-c", FORKS_ANEW], timeout=60, check=False)
    assert run.returncode == 0


FORKS_FIRST = """
import os, signal, sys
from jobmesh import Client, errors
client = Client("127.0.0.1:1", attempts=1)
if os.fork() == 0:
    signal.alarm(20)
    try:
        Client("127.0.0.1:1", attempts=1).types()
    except errors.Unavailable:
        sys.exit(0)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_process_that_forks_before_the_first_call_may_use_clients_in_its_children() -> None:
    run = subprocess.run([sys.executable, "-c", FORKS_FIRST], timeout=60, check=False)
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("blocking", "asynchronous", "only_async"),
    [
        (Client, AsyncClient, {"stub", "pages", "upload"}),
        (JobHandle, AsyncJobHandle, set()),
        (Schedules, AsyncSchedules, set()),
    ],
)
def test_the_twins_offer_the_same(blocking: type, asynchronous: type, only_async: set[str]) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(asynchronous) - public(blocking) == only_async
    assert public(blocking) - public(asynchronous) == set()
    for name in public(blocking) - {"address", "watch"}:
        ours = inspect.signature(getattr(blocking, name)).parameters
        theirs = inspect.signature(getattr(asynchronous, name)).parameters
        assert list(ours) == list(theirs), name


def test_the_options_of_enqueue_are_the_fields_of_a_new_job() -> None:
    fields = {f.name for f in dataclasses.fields(NewJob) if f.init} - {"type", "input"}
    assert set(EnqueueOptions.__annotations__) == fields
