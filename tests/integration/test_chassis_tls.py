"""Mutual TLS between processes of the mesh."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from jobmesh.v1 import enqueue_service_pb2_grpc as pb_grpc

from services.mesh.errors import DependencyUnavailable
from services.mesh.rpc import TlsFiles, open_channel
from services.mesh.runtime import StartupError
from tests.integration.chassis_mesh import get_job, mesh

OPENSSL = shutil.which("openssl") or ""
pytestmark = pytest.mark.skipif(not OPENSSL, reason="needs the program openssl")


def issue(folder: Path, name: str, authority: str) -> TlsFiles:
    """Files for one side, signed by an authority that is made when it is first named."""
    ca = folder / f"{authority}.pem"
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")

    def openssl(*args: str) -> None:
        subprocess.run([OPENSSL, *args], cwd=folder, check=True, capture_output=True)

    if not ca.exists():
        openssl(
            *("req", "-x509", *new_key, "-keyout", f"{authority}.key", "-out", ca.name),
            *("-days", "2", "-subj", f"/CN={authority}"),
        )
    openssl(
        *("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    )
    (folder / "san.cnf").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(
        *("x509", "-req", "-in", f"{name}.csr", "-CA", ca.name, "-CAkey", f"{authority}.key"),
        *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "san.cnf"),
    )
    return TlsFiles(str(folder / f"{name}.pem"), str(folder / f"{name}.key"), str(ca))


async def test_peers_with_certificates_of_one_authority_talk(tmp_path: Path) -> None:
    server, client = issue(tmp_path, "server", "ours"), issue(tmp_path, "client", "ours")
    async with (
        mesh(tls=server) as m,
        open_channel(m.server.address, peer="enqueue", tls=client) as channel,
    ):
        await pb_grpc.EnqueueServiceStub(channel).GetJob(get_job())


async def test_stranger_and_plain_text_are_refused(tmp_path: Path) -> None:
    server, client = issue(tmp_path, "server", "ours"), issue(tmp_path, "client", "theirs")
    # The stranger trusts us; it is we who do not know its authority.
    stranger = TlsFiles(client.cert, client.key, server.ca)
    async with mesh(tls=server) as m:
        for tls in (stranger, None):
            async with open_channel(m.server.address, peer="enqueue", tls=tls) as channel:
                with pytest.raises(DependencyUnavailable):
                    await pb_grpc.EnqueueServiceStub(channel).GetJob(get_job())


async def test_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    old = issue(tmp_path, "server", "old")
    client_of_new = issue(tmp_path, "client", "new")
    assert old.ca is not None
    served = TlsFiles(old.cert, old.key)
    trusting_new = TlsFiles(client_of_new.cert, client_of_new.key, client_of_new.ca)
    async with mesh(tls=served) as m:
        async with open_channel(m.server.address, peer="enqueue", tls=trusting_new) as channel:
            with pytest.raises(DependencyUnavailable):
                await pb_grpc.EnqueueServiceStub(channel).GetJob(get_job())
        issue(tmp_path, "server", "new")
        async with open_channel(m.server.address, peer="enqueue", tls=trusting_new) as channel:
            await pb_grpc.EnqueueServiceStub(channel).GetJob(get_job())


def test_files_that_do_not_belong_together_are_told_by_their_paths(tmp_path: Path) -> None:
    one, other = issue(tmp_path, "one", "ours"), issue(tmp_path, "other", "ours")
    with pytest.raises(StartupError, match=r"one\.pem.*other\.key.*KEY_VALUES_MISMATCH"):
        TlsFiles(one.cert, other.key).server_context()
    with pytest.raises(StartupError, match=r"one\.key"):
        TlsFiles(one.key, one.key).server_context()


def test_missing_file_is_told_by_its_path(tmp_path: Path) -> None:
    files = TlsFiles(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with pytest.raises(StartupError, match=r"key\.pem"):
        files.server_context()
