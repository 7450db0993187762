"""Test servers in docker containers, where a daemon answers and has (or quickly gets) the images.

It never makes a test run hang: the daemon must answer a ping at once, and an image that is not
there must arrive within a short deadline; otherwise the next provider serves. JOBMESH_TEST_DOCKER=0
turns it off.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from localmesh.providers import ACCESS_KEY, SECRET_KEY, UnavailableError

PING_SECONDS = 0.5
PULL_SECONDS = 60.0
READY_SECONDS = 30.0
IMAGES = {
    "postgres": "postgres:18-alpine",
    "nats": "nats:2.12-alpine",
    "etcd": "bitnami/etcd:3.5.21",
    "s3": "chrislusf/seaweedfs:4.48",
}


class DockerProvider:
    """Containers through testcontainers; stopped and removed by `close`."""

    name = "docker"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._containers: list[Any] = []
        self._answers: bool | None = None

    def postgres(self) -> str:
        env = {
            "POSTGRES_PASSWORD": SECRET_KEY,
            "POSTGRES_USER": "jobmesh",
            "POSTGRES_DB": "postgres",
        }
        form = f"postgresql://jobmesh:{SECRET_KEY}@{{address}}/postgres?sslmode=disable"
        return self._run("postgres", 5432, [], env, form, _answers_query)

    def nats(self) -> str:
        flags = ["-m", "8222"]
        return self._run("nats", 4222, flags, {}, "nats://{address}", _greets)

    def etcd(self) -> str:
        flags = ["--max-txn-ops=1024", "--listen-client-urls=http://0.0.0.0:2379"]
        command = ["etcd", *flags, "--advertise-client-urls=http://127.0.0.1:2379"]
        return self._run("etcd", 2379, command, {}, "http://{address}", _serves("/health"))

    def s3(self) -> str:
        env = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        command = ["mini", "-dir=/data", "-master.telemetry=false"]
        form = f"http://{ACCESS_KEY}:{SECRET_KEY}@{{address}}"
        return self._run("s3", 8333, command, env, form, _serves("/"))

    def close(self) -> None:
        while self._containers:
            self._containers.pop().stop()

    def _run(
        self,
        kind: str,
        port: int,
        command: Sequence[str],
        env: Mapping[str, str],
        form: str,
        ready: Callable[[str], None],
    ) -> str:
        """Start a container and give its address in the given form, once it is ready."""
        image = IMAGES[kind]
        if not self._available() or not _within(PULL_SECONDS, lambda: _ensure_image(image)):
            raise UnavailableError(kind)
        container = _container(image, port, command, env)
        self._containers.append(container)
        try:
            container.start()
            host = container.get_container_host_ip()
            url = form.format(address=f"{host}:{container.get_exposed_port(port)}")
            _await(lambda: ready(url))
        except Exception as error:
            raise UnavailableError(kind) from error
        return url

    def _available(self) -> bool:
        if self._answers is None:
            off = self._environ.get("JOBMESH_TEST_DOCKER") == "0"
            self._answers = not off and daemon_answers(self._environ.get("DOCKER_HOST", ""))
        return self._answers


def daemon_answers(docker_host: str) -> bool:
    """Whether a docker daemon answers a ping at once."""
    url = urlsplit(docker_host or "unix:///var/run/docker.sock")
    unix = url.scheme == "unix"
    address = url.path if unix else (url.hostname, url.port or 2375)
    try:
        with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as link:
            link.settimeout(PING_SECONDS)
            link.connect(address)
            link.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return link.recv(64).split(b" ")[1:2] == [b"200"]
    except OSError:
        return False


def _container(image: str, port: int, command: Sequence[str], env: Mapping[str, str]) -> Any:
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    testcontainers_config.ryuk_disabled = (
        True  # its own image would have to be there too; `close` removes ours
    )
    container = DockerContainer(image).with_exposed_ports(port)
    for name, value in env.items():
        container.with_env(name, value)
    return container.with_command(list(command)) if command else container


def _ensure_image(image: str) -> None:
    import docker  # type: ignore[import-untyped]

    client = docker.from_env(timeout=int(PULL_SECONDS))
    try:
        with suppress(docker.errors.ImageNotFound):
            client.images.get(image)
            return
        client.images.pull(image)
    finally:
        client.close()


def _within(seconds: float, work: Callable[[], None]) -> bool:
    """Whether `work` succeeds in time. A late thread is left behind: it dies with the process."""
    done = threading.Event()

    def attempt() -> None:
        with suppress(Exception):
            work()
            done.set()

    thread = threading.Thread(target=attempt, name="docker-image", daemon=True)
    thread.start()
    thread.join(seconds)
    return done.is_set()


def _await(check: Callable[[], None]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    pause = threading.Event()
    while True:
        try:
            return check()
        except Exception:
            if time.monotonic() > deadline:
                raise
        pause.wait(0.1)


def _answers_query(url: str) -> None:
    # The image starts its server twice: only a query over the network proves the second.
    import psycopg

    with psycopg.connect(url, connect_timeout=2) as connection:
        connection.execute("SELECT 1")


def _greets(url: str) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), 1.0) as link:
        if not link.recv(1):
            raise ConnectionError("closed at once")


def _serves(path: str) -> Callable[[str], None]:
    def check(url: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2.0)
        try:
            connection.request("GET", path)
            if connection.getresponse().status >= 500:
                raise ConnectionError("not healthy")
        finally:
            connection.close()

    return check
