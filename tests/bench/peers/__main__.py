"""`make bench-peers`: our mesh and then each peer, one after the other, and the ratios.

Durable settings for all: Postgres with fsync and synchronous commit, Redis with an append-only file
that is synced at every write, Temporal's development server with a database file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.__main__ import RESULTS, measured, write
from tests.bench.ground import say
from tests.bench.peers.servers import PYTHON, SERVERS, Place
from tests.node import InstallError, node_with_packages

FOLDER = Path(__file__).parent
BULLMQ = FOLDER / "bullmq"
LIMIT_SECONDS = 300.0
#: What is measured of each, under the names that ours have in the results. None where a peer has
#: no such thing.
NAMES = (
    "throughput_batch_jobs_per_s",
    "throughput_stream_jobs_per_s",
    "throughput_unary_jobs_per_s",
    "drain_jobs_per_s",
    "latency_start_p50_ms",
    "latency_start_p99_ms",
    "lateness_p50_ms",
    "lateness_p99_ms",
    "cpu_us_per_job",
    "wal_bytes_per_job",
    "rss_mb",
)
#: Workloads of ours that have these figures.
OURS = ["batch", "stream", "drain", "unary", "latency", "lateness"]


@dataclass(frozen=True, slots=True)
class Peer:
    """On which server it runs, and with how much of the work."""

    server: str
    share: float


#: Slow ones get less to do: rates do not depend on it.
PEERS = {
    "pgqueuer": Peer("postgres", 1.0),
    "bullmq": Peer("redis", 1.0),
    "dramatiq": Peer("redis", 0.2),
    "procrastinate": Peer("postgres", 0.1),
    "celery": Peer("redis", 0.1),
    "temporal": Peer("temporal", 0.02),
}
LEAST_JOBS, LEAST_SINGLES = 300, 100


def run_peer(name: str, jobs: int, singles: int) -> dict[str, Any]:
    """What was found, under all names, and why if something was not."""
    peer = PEERS[name]
    counts = {
        "jobs": max(LEAST_JOBS, round(jobs * peer.share)),
        "singles": max(LEAST_SINGLES, round(singles * peer.share)),
    }
    try:
        node = installed_node() if name == "bullmq" else ""
    except InstallError as error:
        return dict.fromkeys(NAMES) | {"left_out": f"npm: {_last(str(error))}"}
    with (
        tempfile.TemporaryDirectory(prefix="jobmesh-peer-") as home,
        SERVERS[peer.server](Path(home)) as place,
    ):
        return counts | _measured(name, counts, _environment(place, home, node))


def installed_node() -> str:
    """The node that has the packages of BullMQ's lock file beside it."""
    (node,) = node_with_packages(BULLMQ)
    return node


def _environment(place: Place, home: str, node: str) -> dict[str, str]:
    return os.environ | {
        "PEER_URL": place.url,
        "PEER_SERVER_PID": str(place.pid),
        "PEER_STAMPS": str(Path(home) / "stamps"),
        "PEER_NODE": node,
    }


def _measured(name: str, counts: dict[str, int], environment: dict[str, str]) -> dict[str, Any]:
    flags = [text for key, value in counts.items() for text in (f"--{key}", str(value))]
    driver = subprocess.Popen(
        [str(PYTHON), "measure.py", "run", name, *flags],
        cwd=FOLDER,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complaint = driver.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)  # with its worker, which has no time to say goodbye
        printed, _ = driver.communicate()
        complaint = f"took longer than {LIMIT_SECONDS:.0f} s"
    return named(printed, complaint if driver.returncode else "")


def named(printed: str, complaint: str) -> dict[str, Any]:
    """The figures that were printed, None for the others, and why those are missing."""
    found: dict[str, Any] = dict.fromkeys(NAMES)
    for line in printed.splitlines():
        found |= json.loads(line)
    return found | ({"left_out": _last(complaint)} if complaint else {})


def _last(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "failed"


def said(peers: Mapping[str, dict[str, Any]]) -> None:
    """A line per figure, a column per queue."""
    ours = peers["jobmesh"]
    say(f"\n{'':28}" + "".join(f"{name:^21}" for name in peers))
    for figure in NAMES:
        mine = total(ours[figure])
        cells = (_cell(total(found[figure]), mine, name) for name, found in peers.items())
        say(f"{figure:28}" + "".join(cells))
    say("(ours ÷ the peer's)")
    for name, found in peers.items():
        if "left_out" in found:
            say(f"{name}: the rest is left out: {found['left_out']}")


def _cell(value: float | None, mine: float | None, name: str) -> str:
    if value is None:
        return f"{'-':>9}{'':12}"
    ratio = f" ({mine / value:.2f} x)" if value and mine and name != "jobmesh" else ""
    return f"{value:>9,.1f}{ratio:12}"


def total(figure: Any) -> float | None:
    """Of what stands by process, the sum."""
    return sum(figure.values()) if isinstance(figure, dict) else figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--singles", type=int, default=1_000)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=[*PEERS, []])
    given = parser.parse_args()
    if given.peers and not PYTHON.exists():
        parser.error(
            "the peers are not installed yet: `make bench-peers` does that, and calls this"
        )
    asked = argparse.Namespace(jobs=given.jobs, workers=1, only=OURS)
    results = asyncio.run(measured(asked))
    ours = {name: results.get(name) for name in NAMES}
    peers: dict[str, Any] = {"jobmesh": ours}
    for name in given.peers:
        say(f"measuring {name} …")
        peers[name] = run_peer(name, given.jobs, given.singles)
    said(peers)
    try:
        kept = json.loads(RESULTS.read_text())
    except (OSError, ValueError):
        kept = {}
    write(kept | results | {"peers": peers})


if __name__ == "__main__":
    main()
