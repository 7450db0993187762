"""A service of the mesh as a unit: a Python process that is ready when its gRPC health says so."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from localmesh.errors import NotReadyError
from localmesh.ports import LOOPBACK
from localmesh.processes import Command, StopLadder
from localmesh.settings import ServiceSpec
from localmesh.unit import PROBE_SECONDS, Kind, Unit

GRACE_SECONDS = 25.0
#: How long a worker has to hand back what it did not finish, and to end.
HAND_BACK_SECONDS = 5.0
# What only some services may know comes from the plan, never from the caller's environment.
_WITHHELD = ("JOBMESH_POSTGRES_URLS", "JOBMESH_SHARD_DSNS", "JOBMESH_S3_SECRET_KEY")
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def drain_ladder(grace: float) -> StopLadder:
    """Ask a service to drain, and end it if it has not within `grace` seconds."""
    return ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0))


def hand_back_ladder(grace: float) -> StopLadder:
    """As `drain_ladder`, for a worker whose jobs may run for `grace` seconds and then go back."""
    return drain_ladder(grace + min(grace, HAND_BACK_SECONDS))


class Service(Unit):
    """One replica of one service."""

    kind: Kind = "service"
    stop_ladder: StopLadder = drain_ladder(GRACE_SECONDS)

    def __init__(
        self,
        name: str,
        role: str,
        spec: ServiceSpec,
        *,
        port: int,
        metrics_port: int,
        folder: Path,
        environment: Callable[[], Mapping[str, str]],
    ) -> None:
        super().__init__(name)
        self.role = role
        self.port = port
        self.metrics_port = metrics_port
        self._spec = spec
        self._folder = folder
        self._environment = environment

    @property
    def ports(self) -> Mapping[str, int]:
        return {"grpc": self.port, "metrics": self.metrics_port}

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def command(self) -> Command:
        inherited = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
        own = {
            "JOBMESH_LISTEN": self.target,
            "JOBMESH_METRICS_LISTEN": f"{LOOPBACK}:{self.metrics_port}",
            "JOBMESH_INSTANCE": self.name,
            "PYTHONUNBUFFERED": "1",
        }
        env = {**inherited, **self._environment(), **own}
        return Command([sys.executable, *self._spec.arguments], cwd=self._folder, env=env)

    def probe(self) -> None:
        try:
            # gRPC itself would take long to give up, and longer to try again.
            socket.create_connection((LOOPBACK, self.port), PROBE_SECONDS).close()
        except OSError as error:
            raise NotReadyError(f"no answer on port {self.port}: {error}") from error
        check_health(self.target, self._spec.health)


def limit_drain(target: str, seconds: float) -> None:
    """Have a worker drain, and hand back what it has not finished by then. It may not hear it: the
    signal that follows drains it too, only for as long as it was told at its start.
    """
    import grpc
    from jobmesh.v1 import worker_service_pb2, worker_service_pb2_grpc

    request = worker_service_pb2.WorkerServiceDrainRequest()
    request.timeout.FromNanoseconds(int(seconds * 1e9))
    with (
        grpc.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel,
        suppress(grpc.RpcError),
    ):
        stub: Any = worker_service_pb2_grpc.WorkerServiceStub(channel)
        stub.Drain(request, timeout=PROBE_SECONDS)


def check_health(target: str, service: str) -> None:
    """Raise NotReadyError unless the gRPC health of a service is SERVING."""
    # Imported here: commands that ask no service need not wait for it.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(request, timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            raise NotReadyError(f"{service}: {error.code().name}") from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise NotReadyError(f"{service} is NOT_SERVING")
