"""What is looked at every few seconds: processes, tables, claims, etcd."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from localmesh.harness import RunningMesh
from localmesh.ports import LOOPBACK
from localmesh.processes import Process, descendants

from services.mesh.store.queries import Queries
from tests.bench.cpu import TICKS
from tests.chaos.etcd import EtcdGateway

_BUCKET = re.compile(r'^jobmesh_claim_seconds_bucket\{le="([^"]+)".*\} (\S+)$', re.MULTILINE)
_TABLES = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid), s.n_dead_tup, s.n_live_tup
  FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid WHERE c.relkind = 'r'"""
_CLAIMS = """
SELECT coalesce(sum(calls), 0), coalesce(sum(total_exec_time), 0),
       coalesce(sum(shared_blks_hit + shared_blks_read), 0), coalesce(sum(rows), 0)
  FROM pg_stat_statements WHERE query LIKE %s"""
#: How the text of a claim begins, up to its first parameter.
_CLAIM_TEXT = Queries.load()["claim"].sql.split("%", 1)[0]


class Probes:
    """Looks at everything of one mesh. Methods block: call them in a thread."""

    def __init__(self, mesh: RunningMesh) -> None:
        self._mesh = mesh
        self._began = time.monotonic()
        self._etcd = EtcdGateway(mesh.plan.units["etcd"].ports["client"])
        self._shards = {
            name: psycopg.connect(dsn, autocommit=True) for name, dsn in mesh.shard_dsns.items()
        }

    def sample(self) -> dict[str, Any]:
        return {
            "t": round(time.monotonic() - self._began, 2),
            "load_average": os.getloadavg()[0],
            "processes": self._processes(),
            "shards": {name: self._shard(name) for name in self._shards},
            "claim_buckets": self._claim_buckets(),
            "etcd_mb": self._etcd.size() / 1e6,
        }

    def open_jobs(self) -> int:
        """Jobs that have not ended."""
        query = "SELECT count(*) FROM jobs WHERE state NOT IN (4, 5, 6, 7)"
        rows = (shard.execute(query).fetchone() for shard in self._shards.values())
        return sum(row[0] for row in rows if row)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _processes(self) -> dict[str, dict[str, float]]:
        pids = {name: self._mesh.process(name).pid for name in self._mesh.plan.units}
        workers = {f"worker-{w.type}": w.process.pid for w in self._mesh.workers()}
        found = {}
        for name, pid in {**pids, **workers, "client": os.getpid()}.items():
            # The Scaler's children are the workers, and ours is the mesh.
            alone = name.startswith(("scaler", "client"))
            found[name] = _used([pid] if alone else _family(pid))
        return found

    def _shard(self, name: str) -> dict[str, Any]:
        shard = self._shards[name]
        tables = {
            table: {"table": size, "indexes": indexes, "dead": dead, "live": live}
            for table, size, indexes, dead, live in shard.execute(_TABLES).fetchall()
        }
        claims = shard.execute(_CLAIMS, [_CLAIM_TEXT + "%"]).fetchone()
        assert claims is not None
        names = ("calls", "ms", "blocks", "rows")
        return {"tables": tables, "claims": dict(zip(names, map(float, claims), strict=True))}

    def _claim_buckets(self) -> dict[str, float]:
        """How many claims took at most so many seconds, as the schedulers have counted."""
        found: dict[str, float] = defaultdict(float)
        for name in self._mesh.plan.units:
            if name.startswith("scheduler"):
                port = self._mesh.plan.units[name].ports["metrics"]
                for bound, count in _BUCKET.findall(_metrics(port)):
                    found[bound] += float(count)
        return dict(found)


def remember_statements(mesh: RunningMesh) -> None:
    """Load pg_stat_statements into every shard; it restarts them."""
    for number, dsn in enumerate(mesh.shard_dsns.values()):
        with psycopg.connect(dsn, autocommit=True) as shard:
            shard.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
        mesh.restart(f"shard-{number}")
        with psycopg.connect(dsn, autocommit=True) as shard:
            shard.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _family(pid: int) -> list[int]:
    process = Process.of(pid)
    return [pid, *(child.pid for child in descendants({process}))] if process else []


def _used(pids: list[int]) -> dict[str, float]:
    """Memory without what is shared between processes, open files, and CPU of them all."""
    total = {"mb": 0.0, "fds": 0.0, "cpu": 0.0}
    for pid in pids:
        try:
            status = _fields(Path(f"/proc/{pid}/status").read_text())
            total["mb"] += (int(status["RssAnon"]) + int(status["RssFile"])) / 1e3
            total["fds"] += len(os.listdir(f"/proc/{pid}/fd"))
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total["cpu"] += (int(stat[11]) + int(stat[12])) / TICKS
        except (OSError, KeyError):
            continue  # it has just ended
    return total


def _fields(status: str) -> Mapping[str, str]:
    lines = (line.split(":", 1) for line in status.splitlines())
    return {name: value.removesuffix("kB").strip() for name, value in lines}
