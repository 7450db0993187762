"""What the whole-mesh tests do to a mesh: run workers, follow what handlers did, read metrics."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from jobmesh.client import AsyncClient
from localmesh.harness import RunningMesh
from localmesh.ports import LOOPBACK, PortPool
from localmesh.processes import HOME_TAG, Process
from prometheus_client.parser import text_string_to_metric_families

from services.mesh.testing.waiting import eventually

T = TypeVar("T")

APPS = Path(__file__).with_name("apps")
APP = "gated_app"
#: How long a test waits for what should take moments; the machine may be busy.
PATIENCE = 30.0
_STOP_SECONDS = 10.0
_CLOSE_SECONDS = 3.0


class Worker:
    """A worker process under the test's thumb."""

    def __init__(self, mesh: RunningMesh, child: subprocess.Popen[bytes], metrics_port: int):
        self._mesh = mesh
        self.child = child
        self.metrics_url = f"http://{LOOPBACK}:{metrics_port}/metrics"

    @property
    def pid(self) -> int:
        return self.child.pid

    def identity(self) -> str | None:
        """Its worker id, once it is registered."""
        found = (one.worker_id for one in self._mesh.workers() if one.process.pid == self.pid)
        return next(found, None)

    def kill(self) -> None:
        """SIGKILL, as by the kernel; it is gone when this returns."""
        self.child.kill()
        self.child.wait(_STOP_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP: it lives, but does nothing."""
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.child.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.thaw()
        self.child.terminate()
        return self.child.wait(_STOP_SECONDS)


class WorkerRoom:
    """Starts workers for a mesh; they end with the room, however the test ends."""

    def __init__(self, mesh: RunningMesh) -> None:
        self._mesh = mesh
        self._ports = PortPool()
        self._started: list[Worker] = []
        # The kernel ends a process with the thread that started it, so this one starts them all.
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="worker-owner")

    def start(self, *flags: str, app: str = APP, folder: Path = APPS) -> Worker:
        """A new worker; it may not be registered yet."""
        port = self._ports.take()
        command = [sys.executable, "-m", "services.worker", "--app", app]
        command += ["--listen", f"{LOOPBACK}:0", "--metrics-listen", f"{LOOPBACK}:{port}", *flags]
        return self.run(command, folder, port)

    def run(self, command: list[str], folder: Path, port: int = 0) -> Worker:
        """A new worker, started by another command."""
        child = self._owner.submit(self._spawn, command, folder).result()
        worker = Worker(self._mesh, child, port)
        self._started.append(worker)
        return worker

    async def ready(self, *flags: str, app: str = APP, folder: Path = APPS) -> Worker:
        """A new worker that takes work."""
        worker = self.start(*flags, app=app, folder=folder)
        await eventually(lambda: self._is_there(worker), PATIENCE)
        return worker

    def _is_there(self, worker: Worker) -> bool:
        if worker.child.poll() is not None:
            log = (self._mesh.plan.logs / "workers.log").read_text(errors="replace")
            raise AssertionError(f"a worker ended with {worker.child.returncode}:\n{log[-4000:]}")
        return worker.identity() is not None

    def _spawn(self, command: list[str], folder: Path) -> subprocess.Popen[bytes]:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("JOBMESH_")}
        env = {**inherited, **self._mesh.environment(), HOME_TAG: str(self._mesh.home)}
        with (self._mesh.plan.logs / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", "--", *command],
                cwd=folder,
                env={**env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        living = [worker for worker in self._started if worker.child.poll() is None]
        for worker in living:
            worker.thaw()
            worker.child.terminate()
        for worker in living:
            try:
                worker.child.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:  # a test failed and left jobs running
                worker.kill()
        self._owner.shutdown()
        self._ports.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Start:
    """One line of a journal: an attempt of a gated job that began to run."""

    job_id: str
    fence: int
    worker_pid: int
    executor_pid: int


class Gates:
    """The folder that gated handlers of one test look into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.input = {"folder": str(folder), "seconds": 30.0}

    def starts(self) -> list[Start]:
        journal = self.folder / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [Start(words[0], *map(int, words[1:])) for words in map(str.split, lines)]

    def open(self, fence: int | None = None) -> None:
        """Let all attempts go on, or those of one dispatch number."""
        (self.folder / ("open" if fence is None else f"open-{fence}")).touch()

    async def started(self, count: int, fence: int = 1, seconds: float = PATIENCE) -> list[Start]:
        """Wait until so many attempts with this fence have begun."""
        await eventually(lambda: len(self._with(fence)) >= count, seconds)
        return self._with(fence)

    def _with(self, fence: int) -> list[Start]:
        return [start for start in self.starts() if start.fence == fence]


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    process = Process.of(pid)
    return process is not None and process.alive()


async def aside(work: Callable[..., T], *arguments: object) -> T:
    """Do something that blocks while the event loop goes on."""
    return await asyncio.to_thread(work, *arguments)


async def types_known(client: AsyncClient, *types: str) -> None:
    """Wait until the mesh takes jobs of these types."""

    async def known() -> bool:
        return set(types) <= set(await client.types())

    await eventually(known, PATIENCE)


def samples(url: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples of a metrics endpoint: name, labels, value."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def metric(url: str, name: str, **labels: str) -> float:
    """The sum over the samples of this name that have these labels."""
    return sum(
        value
        for found, has, value in samples(url)
        if found == name and labels.items() <= has.items()
    )
