"""From settings to units: the processes that make up a mesh, and how they find each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from localmesh.ports import LOOPBACK
from localmesh.servers import S3, Etcd, Nats, Postgres, Server
from localmesh.service import Service
from localmesh.settings import MeshSettings, ServiceSpec, inner_s3_ports, replica_name
from localmesh.unit import Unit

WORKERS_DIR = "JOBMESH_LOCAL_WORKERS_DIR"

Reroute = Callable[[str, Mapping[str, str]], Mapping[str, str]]
"""Given a unit's name and its variables, the variables it is told instead."""


def direct(name: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Everyone finds everyone where they are."""
    return variables


@dataclass(frozen=True)
class Plan:
    """The units of one mesh and the addresses they are told.

    `reroute` may put something between two units: a test's proxy.
    """

    home: Path
    settings: MeshSettings
    reroute: Reroute = direct

    @cached_property
    def servers(self) -> list[Server]:
        """The servers to start: those without an address in the settings."""
        settings = self.settings
        servers: list[Server] = list(self._shards)
        if not settings.nats_url:
            servers.append(self._nats)
        if not settings.etcd_endpoints:
            servers += self._etcds
        if not settings.s3_endpoint:
            servers.append(self._s3)
        return servers

    @cached_property
    def services(self) -> list[Service]:
        return [
            self._service(name, spec, index)
            for name, spec in self.settings.services.items()
            for index in range(self.settings.replicas.get(name, 0))
        ]

    @cached_property
    def units(self) -> dict[str, Unit]:
        return {unit.name: unit for unit in [*self.servers, *self.services]}

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def workers(self) -> Path:
        return self.home / "workers"

    def targets(self, service: str) -> list[str]:
        """The gRPC addresses of all replicas of a service."""
        return [unit.target for unit in self.services if unit.role == service]

    def shard_dsns(self) -> dict[str, str]:
        """The shards by name; the embedded ones have a password only once prepared."""
        urls = self.settings.postgres_urls or [shard.dsn() for shard in self._shards]
        return {f"s{index}": url for index, url in enumerate(urls)}

    @property
    def nats_url(self) -> str:
        return self.settings.nats_url or self._nats.url

    @property
    def etcd_endpoints(self) -> str:
        own = (f"{LOOPBACK}:{etcd.port}" for etcd in self._etcds)
        return ",".join(self.settings.etcd_endpoints or own)

    @property
    def s3_endpoint(self) -> str:
        return self.settings.s3_endpoint or self._s3.url

    def environment(self, *wants: str) -> dict[str, str]:
        """The variables that tell a process of this mesh where everything is."""
        variables = {
            "JOBMESH_NATS_URL": self.nats_url,
            "JOBMESH_ETCD_ENDPOINTS": self.etcd_endpoints,
            **self._own_etcd(),
            **self.settings.environment,
        }
        for want in wants:
            variables |= self._group(want)
        return variables

    def _own_etcd(self) -> dict[str, str]:
        """Our own etcd is started with room for a whole batch of locks in one transaction."""
        return {} if self.settings.etcd_endpoints else {"JOBMESH_ETCD_MAX_TXN_OPS": "1024"}

    def _group(self, want: str) -> Mapping[str, str]:
        settings = self.settings
        match want:
            case "shards":
                pairs = (f"{name}={dsn}" for name, dsn in self.shard_dsns().items())
                return {"JOBMESH_SHARD_DSNS": ",".join(pairs)}
            case "orchestrator":
                return {"JOBMESH_ORCHESTRATOR_TARGET": ",".join(self.targets("orchestrator"))}
            case "workers":
                return {WORKERS_DIR: str(self.workers)}
            case "s3":
                return {
                    "JOBMESH_S3_ENDPOINT": self.s3_endpoint,
                    "JOBMESH_S3_REGION": settings.s3_region,
                    "JOBMESH_S3_ACCESS_KEY": settings.s3_access_key,
                    "JOBMESH_S3_SECRET_KEY": settings.s3_secret_key,
                    "JOBMESH_S3_INPUT_BUCKET": settings.s3_input_bucket,
                    "JOBMESH_S3_OUTPUT_BUCKET": settings.s3_output_bucket,
                }
        raise ValueError(f"no group of settings is called {want}")

    def _service(self, role: str, spec: ServiceSpec, index: int) -> Service:
        name = replica_name(role, index)
        return Service(
            name,
            role,
            spec,
            port=self.settings.port(name),
            metrics_port=self.settings.port(f"{name}.metrics"),
            folder=Path(self.settings.folder),
            environment=lambda: self.reroute(name, self.environment(*spec.wants)),
        )

    def _data(self, name: str) -> Path:
        return self.home / "data" / name

    @cached_property
    def _shards(self) -> list[Postgres]:
        count = 0 if self.settings.postgres_urls else self.settings.shards
        names = [f"shard-{index}" for index in range(count)]
        return [Postgres(n, self._data(n), port=self.settings.port(n)) for n in names]

    @cached_property
    def _nats(self) -> Nats:
        port = self.settings.port
        return Nats(
            "nats", self._data("nats"), port=port("nats"), monitor_port=port("nats.monitor")
        )

    @cached_property
    def _etcds(self) -> list[Etcd]:
        port = self.settings.port
        names = [replica_name("etcd", index) for index in range(self.settings.etcd_members)]
        peers = {name: port(f"{name}.peer") for name in names} if len(names) > 1 else {}
        return [
            Etcd(
                name, self._data(name), port=port(name), peer_port=port(f"{name}.peer"), peers=peers
            )
            for name in names
        ]

    @cached_property
    def _s3(self) -> S3:
        return S3(
            "s3",
            self._data("s3"),
            port=self.settings.port("s3"),
            inner_ports=inner_s3_ports(self.settings),
            access_key=self.settings.s3_access_key,
            secret_key=self.settings.s3_secret_key,
            buckets=(self.settings.s3_input_bucket, self.settings.s3_output_bucket),
        )
