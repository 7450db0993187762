"""What all servers have in common: a data folder, an address, and health over HTTP."""

from __future__ import annotations

import http.client
import os
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from localmesh.errors import NotReadyError, explained
from localmesh.ports import LOOPBACK
from localmesh.unit import PROBE_SECONDS, Kind, Unit


class Server(Unit):
    """One server process, described by its data folder and ports."""

    kind: Kind = "server"

    def __init__(self, name: str, data: Path) -> None:
        super().__init__(name)
        self.data = data

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it."""

    def prepare(self) -> None:
        with explained(self.data):
            self.data.mkdir(parents=True, exist_ok=True)


def http_get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET on the loopback; NotReadyError if nobody answers."""
    return http_call(port, "GET", path)


def http_call(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PROBE_SECONDS)
    try:
        connection.request(method, path, body=body or None, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise NotReadyError(f"no answer on port {port}: {error}") from error
    finally:
        connection.close()


def clean_environment() -> dict[str, str]:
    """An environment without the PG*, ETCD_* and AWS_* variables that change server settings."""
    kept = ("PATH", "HOME", "TMPDIR", "SYSTEMROOT")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "LC_ALL": "C",
        "TZ": "UTC",
    }
