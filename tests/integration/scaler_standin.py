"""A worker that runs no jobs: it registers, is as busy as a file says, and drains.

The Scaler's tests start it in place of `services.worker`, with the same flags. What it does is in
the name of its `--app`: "fine" registers, "crashes" ends with an error, "mute" never registers.
It is busy while the file `<pid>.busy` stands in its directory, has finished as many attempts as
`<pid>.finished` has bytes, and leaves `<pid>.ended` behind, which says "finished" or, if the drain
timeout ended first, "handed back".
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc.aio
from jobmesh.v1 import worker_service_pb2 as pb
from jobmesh.v1 import worker_service_pb2_grpc as rpc

from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings, LeaseSession
from services.mesh.wire.values import timestamp

LOOK_EVERY_SECONDS = 0.02


class Standin(rpc.WorkerServiceServicer):
    def __init__(self, options: argparse.Namespace, address: str) -> None:
        self.drained = asyncio.Event()
        self.drain_seconds = float(options.drain_seconds)
        self._folder = Path(os.environ["JOBMESH_LOCAL_WORKERS_DIR"])
        self.info = pb.WorkerInfo(
            worker_id=f"standin-{uuid.uuid4()}",
            types=[pb.TypeCapacity(type=options.types, capacity=int(options.capacity))],
            address=address,
            host=socket.gethostname(),
            pid=os.getpid(),
            start_time=timestamp(datetime.now(UTC)),
            started_by=options.started_by,
        )

    @property
    def busy(self) -> bool:
        return (self._folder / f"{os.getpid()}.busy").exists()

    @property
    def finished(self) -> int:
        file = self._folder / f"{os.getpid()}.finished"
        return file.stat().st_size if file.exists() else 0

    async def Describe(self, request: Any, context: Any) -> pb.WorkerServiceDescribeResponse:
        return pb.WorkerServiceDescribeResponse(
            worker=self.info, running=int(self.busy), finished={"succeeded": self.finished}
        )

    async def Drain(
        self, request: pb.WorkerServiceDrainRequest, context: Any
    ) -> pb.WorkerServiceDrainResponse:
        if request.HasField("timeout"):
            self.drain_seconds = request.timeout.ToNanoseconds() / 1e9
        self.drained.set()
        return pb.WorkerServiceDrainResponse(running=int(self.busy))

    async def finish(self) -> None:
        """Work on until nothing is left or the time is over."""
        outcome = "finished"
        try:
            async with asyncio.timeout(self.drain_seconds):
                while self.busy:  # noqa: ASYNC110 - a file can only be looked at
                    await asyncio.sleep(LOOK_EVERY_SECONDS)
        except TimeoutError:
            outcome = "handed back"
        (self._folder / f"{os.getpid()}.ended").write_text(outcome)


async def run(options: argparse.Namespace) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port(options.listen)
    worker = Standin(options, f"127.0.0.1:{port}")  # type: ignore[abstract]
    rpc.add_WorkerServiceServicer_to_server(worker, server)
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drained.set)
    client = EtcdClient(EtcdSettings((os.environ["JOBMESH_ETCD_ENDPOINTS"],)))
    registry, keys = EtcdRegistry(client), Keys(os.environ["JOBMESH_ETCD_PREFIX"])
    lease = await LeaseSession.grant(client)
    key = keys.worker(worker.info.worker_id)
    if options.app != "mute":
        await registry.put(key, worker.info.SerializeToString(), lease)
    await worker.drained.wait()
    worker.info.draining = True
    if options.app != "mute":
        await registry.put(key, worker.info.SerializeToString(), lease)
    await worker.finish()
    await lease.close()
    await server.stop(None)
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--app", "--types", "--listen", "--started-by", "--drain-seconds"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--capacity", default="1")
    options = parser.parse_args()
    if options.app == "crashes":
        sys.exit("ModuleNotFoundError: No module named 'shop'")
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
