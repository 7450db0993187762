"""Stands in for a service: serves gRPC health under the name of its role, drains on SIGTERM.

Told by its environment, like a real one. STANDIN_HEALTH is the name it serves; with
STANDIN_CRASH it ends at once; with STANDIN_STUBBORN it does not hear SIGTERM; with
STANDIN_WORKER it starts a process of its own and records it as a worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> None:
    role = sys.argv[1]
    if os.environ.get("STANDIN_CRASH") == role:
        sys.exit(f"{role}: the configuration is wrong")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if os.environ.get("STANDIN_STUBBORN") == role:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "JOBMESH_LOCAL_WORKERS_DIR" in os.environ and "STANDIN_WORKER" in os.environ:
        start_worker(Path(os.environ["JOBMESH_LOCAL_WORKERS_DIR"]))
    server = serve(role)
    print(f"{role} serves, shards: {'JOBMESH_SHARD_DSNS' in os.environ}", flush=True)
    ended.wait()
    server.stop(0)


def serve(role: str) -> grpc.Server:
    servicer = health.HealthServicer()
    name = f"jobmesh.v1.{role.capitalize()}Service"
    servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(os.environ["JOBMESH_LISTEN"])
    server.start()
    return server


def start_worker(folder: Path) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    start_time = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    record = {"pid": child.pid, "start_time": start_time, "type": "render"}
    (folder / f"w{child.pid}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
