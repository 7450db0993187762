"""What a local mesh consists of: how many of what, on which ports, with which servers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from localmesh.errors import LocalError
from localmesh.servers.s3 import INNER_PORTS, REGION

BASE_PORT = 7100
METRICS_OFFSET = 1000
MAX_SHARDS = 10
_BEFORE_URL = r",\s*(?=postgres(?:ql)?://)"  # one URL may name several hosts, with commas
_INNER = tuple(f"s3.{number}" for number in range(1, INNER_PORTS + 1))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One kind of service: how to run it and what it must be told.

    `wants` names groups of settings only some services get: "shards" (database logins), "s3"
    (object store keys), "orchestrator" (its address), "workers" (where worker processes record
    themselves).
    """

    arguments: tuple[str, ...]
    health: str
    port_offset: int
    wants: tuple[str, ...] = ()


SERVICES: Mapping[str, ServiceSpec] = {
    "orchestrator": ServiceSpec(
        ("-m", "services.orchestrator"), "jobmesh.v1.OrchestratorService", 2, ("shards",)
    ),
    "enqueue": ServiceSpec(
        ("-m", "services.enqueue"), "jobmesh.v1.EnqueueService", 1, ("s3", "orchestrator")
    ),
    "scheduler": ServiceSpec(
        ("-m", "services.scheduler"), "jobmesh.v1.SchedulerService", 3, ("shards",)
    ),
    # Not for itself: the workers it starts inherit its environment.
    "scaler": ServiceSpec(
        ("-m", "services.scaler"), "jobmesh.v1.ScalerService", 5, ("s3", "orchestrator", "workers")
    ),
}
REPLICAS: Mapping[str, int] = {"orchestrator": 1, "enqueue": 1, "scheduler": 2, "scaler": 1}


@dataclass(frozen=True, kw_only=True)
class MeshSettings:
    """A whole local mesh. An address for a server means: it runs elsewhere, do not start one."""

    base_port: int = BASE_PORT
    shards: int = 3
    etcd_members: int = 1
    replicas: Mapping[str, int] = field(default_factory=lambda: dict(REPLICAS))
    postgres_urls: tuple[str, ...] = ()
    nats_url: str = ""
    etcd_endpoints: tuple[str, ...] = ()
    s3_endpoint: str = ""
    s3_region: str = REGION
    s3_access_key: str = "jobmesh"
    s3_secret_key: str = "jobmesh-secret"
    s3_input_bucket: str = "jobmesh-input"
    s3_output_bucket: str = "jobmesh-output"
    services: Mapping[str, ServiceSpec] = field(default_factory=lambda: dict(SERVICES))
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every service, on top of those of the command that starts the mesh."""
    folder: str = field(default_factory=os.getcwd)
    """Where the services run, and so where the workers find the user's modules."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Ports by key (see `port_keys`), instead of those that follow from the base port."""

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= MAX_SHARDS:
            raise LocalError(f"a local mesh has 1 to {MAX_SHARDS} shards, not {self.shards}")
        if self.etcd_members not in (1, 3, 5):
            raise LocalError(f"an etcd has 1, 3 or 5 members, not {self.etcd_members}")
        if not 1024 <= self.base_port <= 50000:
            raise LocalError(f"the base port is {self.base_port}", "Choose one from 1024 to 50000")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> MeshSettings:
        """As the variables JOBMESH_BASE_PORT, JOBMESH_POSTGRES_URLS, JOBMESH_NATS_URL … say."""
        read = _Reader(environ)
        plain = cls()
        return replace(
            plain,
            base_port=read.number("JOBMESH_BASE_PORT", plain.base_port),
            shards=read.number("JOBMESH_LOCAL_SHARDS", plain.shards),
            replicas={
                name: read.number(f"JOBMESH_LOCAL_{name.upper()}S", count)
                for name, count in plain.replicas.items()
            },
            postgres_urls=read.several("JOBMESH_POSTGRES_URLS", _BEFORE_URL),
            nats_url=environ.get("JOBMESH_NATS_URL", ""),
            etcd_endpoints=read.several("JOBMESH_ETCD_ENDPOINTS"),
            **{name: environ.get(f"JOBMESH_{name.upper()}", getattr(plain, name)) for name in _S3},
        )

    def port(self, key: str) -> int:
        """The port that belongs to a key."""
        return self.ports[key] if key in self.ports else self._fixed_ports()[key]

    def port_keys(self) -> list[str]:
        """Every port the mesh may listen on: "shard-0", "nats", "scheduler-2.metrics" and so on."""
        return list(self._fixed_ports())

    def with_ports(self, draw: Callable[[], int]) -> MeshSettings:
        """The same mesh on other ports, drawn one by one."""
        return replace(self, ports={key: draw() for key in self.port_keys()})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeshSettings:
        values = {**data, "services": {}}
        for name, spec in data["services"].items():
            values["services"][name] = ServiceSpec(
                tuple(spec["arguments"]), spec["health"], spec["port_offset"], tuple(spec["wants"])
            )
        for name in ("postgres_urls", "etcd_endpoints"):
            values[name] = tuple(values[name])
        return cls(**values)

    def _fixed_ports(self) -> dict[str, int]:
        base = self.base_port
        ports = {f"shard-{index}": base + 32 + index for index in range(self.shards)}
        ports |= {"nats": base + 42, "nats.monitor": base + 43}
        for index in range(self.etcd_members):
            member = replica_name("etcd", index)
            ports |= {member: base + 52 + 2 * index, f"{member}.peer": base + 53 + 2 * index}
        ports |= {key: base + 62 + number for number, key in enumerate(("s3", *_INNER))}
        for name, spec in self.services.items():
            for index in range(self.replicas.get(name, 0)):
                port = base + spec.port_offset + _replica_offset(index)
                ports[replica_name(name, index)] = port
                ports[f"{replica_name(name, index)}.metrics"] = port + METRICS_OFFSET
        return ports


_S3 = (
    "s3_endpoint",
    "s3_region",
    "s3_access_key",
    "s3_secret_key",
    "s3_input_bucket",
    "s3_output_bucket",
)


def replica_name(name: str, index: int) -> str:
    """The first is called like the service itself, the others scheduler-2, scheduler-3 …"""
    return name if index == 0 else f"{name}-{index + 1}"


def inner_s3_ports(settings: MeshSettings) -> list[int]:
    return [settings.port(key) for key in _INNER]


def default_home(environ: Mapping[str, str]) -> Path:
    """JOBMESH_HOME, or .jobmesh in the working directory."""
    return Path(environ.get("JOBMESH_HOME") or ".jobmesh").absolute()


def _replica_offset(index: int) -> int:
    """Three fit below the servers' ports; more stand above them."""
    return 10 * index if index < 3 else 100 + 10 * index


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads variables and says in one line what is wrong with one."""

    environ: Mapping[str, str]

    def number(self, name: str, default: int) -> int:
        text = self.environ.get(name, "")
        if not text:
            return default
        if not text.isdigit():
            raise LocalError(f"{name} is {text!r}", "A whole number is expected")
        return int(text)

    def several(self, name: str, comma: str = ",") -> tuple[str, ...]:
        parts = re.split(comma, self.environ.get(name, ""))
        return tuple(part.strip() for part in parts if part.strip())
