"""A whole mesh for the length of a test: free ports, a folder of its own, gone with the process.

    with running_mesh(tmp_path, schedulers=2) as mesh:
        client = connect(mesh.enqueue_target)
        mesh.kill("scheduler")               # SIGKILL; mesh.restart("scheduler") brings it back
        mesh.stop_server("shard-1")          # mesh.start_server("shard-1") heals it

Every method may be called from any thread; in an async test use `asyncio.to_thread(mesh.restart,
"scheduler")` where the event loop must go on. Processes belong to threads that the mesh owns, and
end with them however the test ends; what the Scaler started is left to the `reaper`.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from localmesh.errors import LocalError, NotReadyError, read_tail
from localmesh.mesh import LocalMesh
from localmesh.plan import Plan, Reroute, direct
from localmesh.ports import PortPool
from localmesh.processes import Process
from localmesh.reaper import Reaper
from localmesh.settings import MeshSettings
from localmesh.state import WorkerRecord, read_workers
from localmesh.status import Row, status

T = TypeVar("T")
STOP_SECONDS = 10.0
OWNERS = 32
_PAUSE = 0.02


def running_mesh(
    home: Path,
    *,
    enqueues: int = 1,
    orchestrators: int = 1,
    schedulers: int = 2,
    scalers: int = 1,
    shards: int = 3,
    etcd_members: int = 1,
    environment: Mapping[str, str] | None = None,
    settings: MeshSettings | None = None,
    reroute: Reroute = direct,
) -> RunningMesh:
    """A mesh to enter with `with` or `async with`; it is up inside the block.

    `environment` goes to every service, on top of their usual variables. `settings` replaces the
    defaults the other arguments are applied to (say, for other service programs). `reroute` is
    asked, whenever a service is started, what it is told about where the others are.
    """
    replicas = {
        "orchestrator": orchestrators,
        "enqueue": enqueues,
        "scheduler": schedulers,
        "scaler": scalers,
    }
    base = settings or MeshSettings()
    extra = {**base.environment, **(environment or {})}
    chosen = replace(
        base, replicas=replicas, shards=shards, etcd_members=etcd_members, environment=extra
    )
    return RunningMesh(home, chosen, reroute)


class RunningMesh:
    """A mesh of real processes under the control of a test."""

    def __init__(self, home: Path, settings: MeshSettings, reroute: Reroute = direct) -> None:
        self._ports = PortPool()
        settings = settings.with_ports(self._ports.take)
        self._mesh = LocalMesh(home, settings, die_with_caller=True, reroute=reroute)
        # Processes end with the thread that started them: these threads live as long as the mesh.
        # Several, for a service that is started waits until a server is, which may be just coming.
        self._owner = ThreadPoolExecutor(OWNERS, thread_name_prefix="mesh-owner")
        self._reaper: Reaper | None = None

    # --- where things are ---

    @property
    def plan(self) -> Plan:
        """Addresses, units and the environment of a process of this mesh."""
        return self._mesh.plan

    @property
    def home(self) -> Path:
        return self._mesh.home

    @property
    def enqueue_target(self) -> str:
        return self.targets("enqueue")[0]

    @property
    def orchestrator_target(self) -> str:
        return self.targets("orchestrator")[0]

    @property
    def scaler_target(self) -> str:
        return self.targets("scaler")[0]

    @property
    def nats_url(self) -> str:
        return self.plan.nats_url

    @property
    def etcd_endpoint(self) -> str:
        return self.plan.etcd_endpoints

    @property
    def shard_dsns(self) -> dict[str, str]:
        return self.plan.shard_dsns()

    def targets(self, service: str) -> list[str]:
        """The gRPC addresses of all replicas of a service."""
        return self.plan.targets(service)

    def environment(self) -> dict[str, str]:
        """What a worker or client process started by the test should be told."""
        return self.plan.environment("s3", "orchestrator", "workers")

    # --- looking ---

    def process(self, name: str) -> Process:
        """The process of a unit as last started."""
        process = self._mesh.process(name)
        if process is None:
            raise LocalError(f"{name} was not started", f"Units: {', '.join(self.plan.units)}")
        return process

    def workers(self) -> list[WorkerRecord]:
        """The worker processes that live now."""
        return read_workers(self.plan.workers)

    def status(self) -> list[Row]:
        return status(self.home)

    def log(self, name: str) -> str:
        """All that a unit has logged."""
        return (self.plan.logs / f"{name}.log").read_text(errors="replace")

    def wait_ready(self, *names: str, seconds: float = 30.0) -> None:
        """Block until these units, or all, answer that they can work."""
        deadline = time.monotonic() + seconds
        for name in names or self.plan.units:
            self._wait_one(name, deadline)

    # --- doing ---

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a unit; after SIGKILL it is gone when this returns."""
        process = self.process(name)
        process.signal(number)
        if number == signal.SIGKILL and not process.wait(STOP_SECONDS):
            raise LocalError(f"{name} survived SIGKILL")

    def stop(self, name: str) -> None:
        """Let a unit end in order."""
        self._own(lambda: self._mesh.stop([name], STOP_SECONDS))

    def start(self, name: str) -> None:
        """Start a unit that was stopped or killed, and wait until it is ready."""
        self._own(lambda: self._mesh.start([self.plan.units[name]]))

    def restart(self, name: str) -> None:
        """Stop a unit in order, if it runs, and start it again."""
        self.stop(name)
        self.start(name)

    stop_server = stop
    start_server = start

    # --- life ---

    def __enter__(self) -> RunningMesh:
        self._reaper = Reaper(self.home)
        try:
            self._own(self._mesh.up)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._show_logs()
        self._close()

    async def __aenter__(self) -> RunningMesh:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)

    def _close(self) -> None:
        try:
            self._own(lambda: self._mesh.down(STOP_SECONDS))
        finally:
            if self._reaper is not None:
                self._reaper.release()
            self._owner.shutdown()
            self._ports.close()

    def _own(self, work: Callable[[], T]) -> T:
        return self._owner.submit(work).result()

    def _wait_one(self, name: str, deadline: float) -> None:
        while True:
            try:
                return self.plan.units[name].probe()
            except NotReadyError as error:
                if time.monotonic() > deadline:
                    raise LocalError(f"{name} is not ready: {error}") from error
            time.sleep(_PAUSE)

    def _show_logs(self) -> None:
        """What the services last said, for the report of the failed test."""
        for unit in self.plan.services:
            lines = read_tail(self.plan.logs / f"{unit.name}.log", size=4096)[-20:]
            sys.stderr.write("\n".join([f"--- {unit.name}", *lines, ""]))
