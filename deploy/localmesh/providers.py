"""Where tests get their servers from: an address in the environment, else docker, else the wheels.

Each kind of server is provided on first request and only then, so a test run starts exactly what it
uses. `sources` says afterwards where each came from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from localmesh.errors import LocalError
from localmesh.ports import PortPool
from localmesh.scratch import Scratch
from localmesh.servers import S3, Etcd, Nats, Postgres, Running, Server, start_servers, stop_servers
from localmesh.servers.s3 import INNER_PORTS, REGION

ACCESS_KEY = "jobmesh"
SECRET_KEY = "jobmesh-local"


@dataclass(frozen=True, slots=True)
class S3Address:
    """An S3 endpoint and the keys to it."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = REGION

    @classmethod
    def parse(cls, url: str) -> S3Address:
        """From http://access:secret@host:port."""
        parts = urlsplit(url)
        if not parts.username or not parts.password or not parts.hostname:
            raise LocalError(
                f"the S3 address {url!r} lacks keys", "Write http://ACCESS:SECRET@HOST:PORT"
            )
        host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
        return cls(urlunsplit((parts.scheme, host, "", "", "")), parts.username, parts.password)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """An S3 store with two buckets that belong to one test."""

    endpoint: str
    region: str
    access_key: str
    secret_key: str
    input_bucket: str
    output_bucket: str


class Provider(Protocol):
    """One way to come by servers. Each method gives the address of a running one."""

    name: str

    def postgres(self) -> str: ...
    def nats(self) -> str: ...
    def etcd(self) -> str: ...
    def s3(self) -> str: ...
    def close(self) -> None: ...


class UnavailableError(Exception):
    """This provider does not have that server; ask the next."""


class EnvironmentProvider:
    """Servers that run anyway, named by JOBMESH_TEST_POSTGRES_URL and its siblings."""

    name = "environment"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def postgres(self) -> str:
        return self._url("POSTGRES")

    def nats(self) -> str:
        return self._url("NATS")

    def etcd(self) -> str:
        return self._url("ETCD")

    def s3(self) -> str:
        return self._url("S3")

    def close(self) -> None:
        """Nothing was started."""

    def _url(self, kind: str) -> str:
        url = self._environ.get(f"JOBMESH_TEST_{kind}_URL", "")
        if not url:
            raise UnavailableError(kind)
        return url


class WheelProvider:
    """Servers from the wheels, in a temporary folder; they end with this process at the latest."""

    name = "wheels"

    def __init__(self) -> None:
        self._ports = PortPool()
        self._scratch: Scratch | None = None
        self._running: list[Running] = []

    def postgres(self) -> str:
        server = Postgres("postgres", self.home / "postgres", port=self._ports.take())
        self._start(server)
        return server.dsn("postgres")

    def nats(self) -> str:
        take = self._ports.take
        return self._start(Nats("nats", self.home / "nats", port=take(), monitor_port=take()))

    def etcd(self) -> str:
        take = self._ports.take
        return self._start(Etcd("etcd", self.home / "etcd", port=take(), peer_port=take()))

    def s3(self) -> str:
        server = S3(
            "s3",
            self.home / "s3",
            port=self._ports.take(),
            inner_ports=[self._ports.take() for _ in range(INNER_PORTS)],
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            buckets=["ready"],
        )
        return self._start(server).replace("://", f"://{ACCESS_KEY}:{SECRET_KEY}@")

    @property
    def home(self) -> Path:
        if self._scratch is None:
            self._scratch = Scratch()
            self._scratch.path.chmod(0o711)  # the account Postgres runs under must get through
        return self._scratch.path

    def close(self) -> None:
        stop_servers(self._running)
        self._running.clear()
        self._ports.close()
        if self._scratch is not None:
            self._scratch.close()

    def _start(self, server: Server) -> str:
        self._running += start_servers([server], self.home, die_with_caller=True)
        return server.url


class TestServers:
    """The servers of one test run, each from the first provider that has it."""

    __test__ = False  # not a test class, whatever its name looks like

    def __init__(self, providers: list[Provider]) -> None:
        self._providers = providers
        self._urls: dict[str, str] = {}
        self.sources: dict[str, str] = {}

    @classmethod
    def from_environment(cls) -> TestServers:
        from localmesh.docker import DockerProvider

        return cls([EnvironmentProvider(os.environ), DockerProvider(os.environ), WheelProvider()])

    def postgres(self) -> str:
        """The DSN of a superuser in the database `postgres`."""
        return self._get("postgres", lambda provider: provider.postgres())

    def nats(self) -> str:
        return self._get("nats", lambda provider: provider.nats())

    def etcd(self) -> str:
        return self._get("etcd", lambda provider: provider.etcd())

    def s3(self) -> S3Address:
        return S3Address.parse(self._get("s3", lambda provider: provider.s3()))

    def close(self) -> None:
        for provider in self._providers:
            provider.close()

    def _get(self, kind: str, ask: Callable[[Provider], str]) -> str:
        if kind not in self._urls:
            self._urls[kind] = self._first(kind, ask)
        return self._urls[kind]

    def _first(self, kind: str, ask: Callable[[Provider], str]) -> str:
        for provider in self._providers:
            try:
                url = ask(provider)
            except UnavailableError:
                continue
            self.sources[kind] = provider.name
            return url
        raise LocalError(f"no provider has a {kind} server")
