"""Ports: taking free ones without a race, refusing busy ones by name.

Free ports come from below the kernel's ephemeral range, so that no outgoing connection can land on
them, and each is reserved by an abstract socket name until the pool is closed: two test processes
never draw the same one.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from localmesh.errors import LocalError

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 10000, 19999
_LISTEN = "0A"


class PortPool:
    """Free ports, reserved against other pools on this machine until `close`."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self) -> int:
        """One free port that no other open pool holds."""
        for _ in range(1000):
            port = random.randint(_FIRST, _LAST)
            if self._reserve(port):
                return port
        raise LocalError(f"no free port between {_FIRST} and {_LAST}")

    def close(self) -> None:
        while self._held:
            self._held.pop().close()

    def __enter__(self) -> PortPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _reserve(self, port: int) -> bool:
        token = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            token.bind(f"\0jobmesh-port-{port}")
        except OSError:
            token.close()
            return False
        if not is_free(port):
            token.close()
            return False
        self._held.append(token)
        return True


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def require_free(owner: str, ports: Iterable[int]) -> None:
    """Raise a LocalError that names the port, and who holds it, unless all are free."""
    for port in ports:
        if not is_free(port):
            raise LocalError(
                f"port {port}, wanted by {owner}, is in use by {holder(port)}",
                "Stop that program, or move the mesh with JOBMESH_BASE_PORT",
            )


def holder(port: int) -> str:
    """The pid and program that listens on a port, as far as this user may see it."""
    inodes = _listening_inodes(port)
    for pid in _pids():
        if inodes & _socket_inodes(pid):
            return f"pid {pid} ({_program(pid)})"
    return "another program"


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(Path(table))[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = str(fd.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        pass  # the process ended, or belongs to another user
    return inodes


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _program(pid: int) -> str:
    lines = _lines(Path(f"/proc/{pid}/comm"))
    return lines[0] if lines else "unknown"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
