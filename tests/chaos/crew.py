"""The workers of a chaos run: named places, each with one worker process that can be replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from localmesh.harness import RunningMesh
from localmesh.plan import Reroute, direct
from localmesh.ports import LOOPBACK
from localmesh.processes import HOME_TAG, Process, descendants

APPS = Path(__file__).with_name("apps")
TYPES = ("grind", "hop", "lane", "nap", "tick", "turn")
_STOP_SECONDS = 15.0
_DRAIN_SECONDS = 60.0
_START_SECONDS = 60.0


class Crew:
    """Worker processes by name (`worker-1` …); they end with the crew, however that ends.

    `reroute` changes what a worker is told about where things are. Methods may be called from any
    thread.
    """

    def __init__(
        self,
        mesh: RunningMesh,
        size: int = 3,
        *,
        reroute: Reroute = direct,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.names = [f"worker-{number}" for number in range(1, size + 1)]
        self._mesh = mesh
        self._reroute = reroute
        self._extra = dict(extra or {})
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        # The kernel ends a process with the thread that started it, so this one starts them all.
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="crew")

    def start(self, name: str, **environment: str) -> None:
        """Start the worker of a place; it may not be registered yet."""
        spawned = self._owner.submit(self._spawn, name, environment).result()
        self._children[name] = spawned

    def wait_ready(self, seconds: float = _START_SECONDS) -> None:
        """Block until all living workers are registered."""
        deadline = time.monotonic() + seconds
        while not all(self.identity(name) for name in self.names if self.lives(name)):
            if time.monotonic() > deadline:
                raise TimeoutError("some workers did not register")
            time.sleep(0.05)

    def lives(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def pid(self, name: str) -> int:
        return self._children[name].pid

    def identity(self, name: str) -> str | None:
        """Its worker id, once it is registered."""
        workers = self._mesh.workers()
        found = (one.worker_id for one in workers if one.process.pid == self.pid(name))
        return next(found, None)

    def kill(self, name: str) -> None:
        """SIGKILL; it is gone when this returns."""
        self._children[name].kill()
        self._children[name].wait(_STOP_SECONDS)

    def freeze(self, name: str) -> None:
        """SIGSTOP for it and its executors."""
        for process in self._family(name):
            process.signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        for process in self._family(name):
            process.signal(signal.SIGCONT)

    def drain(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        self.thaw(name)
        self._children[name].terminate()
        self._children[name].wait(_DRAIN_SECONDS)

    def _family(self, name: str) -> list[Process]:
        process = Process.of(self.pid(name))
        return [process, *descendants({process})] if process is not None else []

    def _spawn(self, name: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None
        command = [sys.executable, "-m", "services.worker", "--app", "chaos_app"]
        command += ["--listen", f"{LOOPBACK}:0", "--types", ",".join(TYPES)]
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("JOBMESH_")}
        told = {**self._mesh.environment(), **self._extra, **environment}
        env = {**inherited, **self._reroute(name, told), HOME_TAG: str(self._mesh.home)}
        with (self._mesh.plan.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", "--", *command],
                cwd=APPS,
                env={**env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        for name in self.names:
            if self.lives(name):
                self.thaw(name)
                self._children[name].terminate()
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(_STOP_SECONDS)
            child.kill()
            child.wait()
        self._owner.shutdown()

    def __enter__(self) -> Self:
        for name in self.names:
            self.start(name)
        self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
