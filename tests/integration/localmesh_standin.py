"""Stands in for a service: serves gRPC health under the name of its role, drains on SIGTERM.

Told by its environment, like a real one. STANDIN_HEALTH is the name it serves; with
STANDIN_CRASH it ends at once; with STANDIN_STUBBORN it does not hear SIGTERM; with
STANDIN_WORKER it starts a process of its own and records it as a worker; if that says "busy", one
that hands back after a minute, or when it is told to, and then leaves `handed-back` in its folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from jobmesh.v1 import worker_service_pb2 as pb
from jobmesh.v1 import worker_service_pb2_grpc as rpc


def main() -> None:
    role = sys.argv[1]
    if role == "worker":
        work(Path(os.environ["JOBMESH_LOCAL_WORKERS_DIR"]))
        return
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
    busy = os.environ["STANDIN_WORKER"] == "busy"
    command = [sys.executable, __file__, "worker"] if busy else ["sleep", "600"]
    child = subprocess.Popen(command, start_new_session=True)
    if busy:
        while not list(folder.glob("*.json")):
            time.sleep(0.02)
    else:
        write_record(folder, child.pid)


def write_record(folder: Path, pid: int, **more: str) -> None:
    start_time = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    record = {"pid": pid, "start_time": start_time, "type": "render", **more}
    (folder / f"w{pid}.json").write_text(json.dumps(record))


class BusyWorker(rpc.WorkerServiceServicer):
    """Has a job in hand that does not end."""

    def __init__(self) -> None:
        self.handed_back = threading.Event()

    def drain(self, seconds: float) -> None:
        threading.Timer(seconds, self.handed_back.set).start()

    def Drain(
        self, request: pb.WorkerServiceDrainRequest, context: Any
    ) -> pb.WorkerServiceDrainResponse:
        self.drain(request.timeout.ToNanoseconds() / 1e9)
        return pb.WorkerServiceDrainResponse(running=1)


def work(folder: Path) -> None:
    worker = BusyWorker()  # type: ignore[abstract]
    signal.signal(signal.SIGTERM, lambda *_: worker.drain(60.0))
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_WorkerServiceServicer_to_server(worker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    write_record(folder, os.getpid(), address=f"127.0.0.1:{port}")
    worker.handed_back.wait()
    (folder / "handed-back").touch()
    os._exit(0)


if __name__ == "__main__":
    main()
