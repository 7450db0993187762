"""Where test servers come from: the environment before docker before the wheels, never a hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from localmesh.docker import DockerProvider, daemon_answers
from localmesh.errors import LocalError
from localmesh.providers import EnvironmentProvider, S3Address, TestServers, UnavailableError


class Named:
    """A provider that has what it was given."""

    def __init__(self, name: str, **urls: str) -> None:
        self.name = name
        self.asked = 0
        self._urls = urls

    def postgres(self) -> str:
        return self._get("postgres")

    def nats(self) -> str:
        return self._get("nats")

    def etcd(self) -> str:
        return self._get("etcd")

    def s3(self) -> str:
        return self._get("s3")

    def close(self) -> None:
        self._urls.clear()

    def _get(self, kind: str) -> str:
        self.asked += 1
        if kind not in self._urls:
            raise UnavailableError(kind)
        return self._urls[kind]


def test_the_first_provider_that_has_a_server_gives_it_once() -> None:
    first, second = Named("first", nats="nats://a"), Named("second", nats="nats://b", etcd="c")
    servers = TestServers([first, second])
    assert servers.nats() == servers.nats() == "nats://a"
    assert servers.etcd() == "c"
    assert servers.sources == {"nats": "first", "etcd": "second"}
    assert (first.asked, second.asked) == (2, 1)


def test_an_address_in_the_environment_is_taken() -> None:
    provider = EnvironmentProvider({"JOBMESH_TEST_NATS_URL": "nats://a"})
    assert provider.nats() == "nats://a"
    with pytest.raises(UnavailableError):
        provider.etcd()


def test_an_s3_address_carries_its_keys() -> None:
    address = S3Address.parse("http://key:secret@host:9000")
    assert address == S3Address("http://host:9000", "key", "secret")
    with pytest.raises(LocalError, match="lacks keys"):
        S3Address.parse("http://host:9000")


def test_docker_is_skipped_when_turned_off_or_away(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/nobody.sock"
    for environ in ({"JOBMESH_TEST_DOCKER": "0"}, {"DOCKER_HOST": nowhere}):
        with pytest.raises(UnavailableError):
            DockerProvider(environ).nats()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"HTTP/1.0 200 OK\r\n\r\nOK", True), (b"HTTP/1.0 500 no\r\n\r\n", False), (b"", False)],
)
def test_a_daemon_counts_only_if_it_answers_the_ping(
    tmp_path: Path, answer: bytes, expected: bool
) -> None:
    path = tmp_path / "docker.sock"
    with _daemon(path, lambda link: link.sendall(answer)):
        assert daemon_answers(f"unix://{path}") is expected


def test_a_daemon_that_hangs_is_left_at_once(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    left = threading.Event()
    with _daemon(path, lambda link: left.wait(30)):
        assert not daemon_answers(f"unix://{path}")
        left.set()


class _daemon:  # noqa: N801 - reads as a function
    """A listener that handles one connection."""

    def __init__(self, path: Path, handle: Callable[[socket.socket], object]) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, args=[handle], name="daemon")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._server.close()

    def _serve(self, handle: Callable[[socket.socket], object]) -> None:
        link, _ = self._server.accept()
        with link:
            link.recv(64)
            handle(link)
