"""The servers from the wheels: durable over kills and restarts, clear about what is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from localmesh.errors import LocalError
from localmesh.ports import LOOPBACK, PortPool
from localmesh.processes import tagged
from localmesh.servers import S3, Etcd, Nats, Postgres, Running, Server, start_servers, stop_servers
from localmesh.servers.s3 import INNER_PORTS
from localmesh.servers.server import http_call
from localmesh.wheels import program


@pytest.fixture
def pool() -> Iterator[PortPool]:
    with PortPool() as ports:
        yield ports


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for process in tagged(tmp_path):
        process.stop()


def test_all_servers_start_together_and_keep_their_data_over_a_restart(
    home: Path, pool: PortPool
) -> None:
    shard, etcd, s3 = _postgres(home, pool), _etcd(home, pool), _s3(home, pool)
    servers: list[Server] = [shard, _nats(home, pool), etcd, s3]

    running = _start(home, servers)
    with psycopg.connect(shard.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
    http_call(etcd.port, "POST", "/v3/kv/put", b'{"key": "a2V5", "value": "dmFsdWU="}')
    s3._put("/input/kept", accept=(200,), body=b"object")
    stop_servers(running)
    assert tagged(home) == []

    running = _start(home, servers)
    with psycopg.connect(shard.url) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (42,)
    _, answer = http_call(etcd.port, "POST", "/v3/kv/range", b'{"key": "a2V5"}')
    assert b"dmFsdWU=" in answer
    assert http_call(s3.port, "GET", "/input/kept", b"", s3._sign("GET", "/input/kept", b"")) == (
        200,
        b"object",
    )
    s3._put("/input/more", accept=(200,), body=b"object")
    stop_servers(running)


def test_servers_listen_on_the_loopback_only(home: Path, pool: PortPool) -> None:
    running = _start(home, [_postgres(home, pool), _nats(home, pool), _s3(home, pool)])
    for one in running:
        for address in _listening(one.process.pid):
            assert address.startswith(LOOPBACK), (one.unit.name, address)
    stop_servers(running)


def test_postgres_comes_back_after_a_kill_and_keeps_what_it_acknowledged(
    home: Path, pool: PortPool
) -> None:
    shard = _postgres(home, pool)
    (running,) = _start(home, [shard])
    with psycopg.connect(shard.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS value")
        running.process.signal(signal.SIGKILL)
        assert running.process.wait(5)
        assert (shard.data / "postmaster.pid").exists()
        # At once: the backends of the dead postmaster may still be there.
        (running,) = _start(home, [shard])
    with psycopg.connect(shard.url) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (42,)
    stop_servers([running])


def test_etcd_and_s3_keep_what_they_acknowledged_over_a_kill(home: Path, pool: PortPool) -> None:
    etcd, s3 = _etcd(home, pool), _s3(home, pool)
    running = _start(home, [etcd, s3])
    http_call(etcd.port, "POST", "/v3/kv/put", b'{"key": "a2V5", "value": "dmFsdWU="}')
    s3._put("/input/kept", accept=(200,), body=b"object")
    for one in running:
        one.process.signal(signal.SIGKILL)
        assert one.process.wait(5)
    running = _start(home, [etcd, s3])
    _, answer = http_call(etcd.port, "POST", "/v3/kv/range", b'{"key": "a2V5"}')
    assert b"dmFsdWU=" in answer
    assert http_call(s3.port, "GET", "/input/kept", b"", s3._sign("GET", "/input/kept", b"")) == (
        200,
        b"object",
    )
    stop_servers(running)


def test_a_lock_file_with_the_pid_of_a_stranger_is_no_obstacle(home: Path, pool: PortPool) -> None:
    shard = _postgres(home, pool)
    stop_servers(_start(home, [shard]))
    (shard.data / "postmaster.pid").write_text(f"{os.getpid()}\n{shard.data}\n")
    stop_servers(_start(home, [shard]))


def test_an_unfinished_first_start_is_begun_again(home: Path, pool: PortPool) -> None:
    shard = _postgres(home, pool)
    half = shard.data.with_name(shard.data.name + ".new")
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    stop_servers(_start(home, [shard]))


def test_two_shards_have_different_passwords_and_refuse_none(home: Path, pool: PortPool) -> None:
    one, other = _postgres(home, pool, "shard-0"), _postgres(home, pool, "shard-1")
    running = _start(home, [one, other])
    passwords = {psycopg.conninfo.conninfo_to_dict(shard.url)["password"] for shard in (one, other)}
    assert len(passwords) == 2
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://jobmesh@{LOOPBACK}:{one.port}/jobmesh?sslmode=disable")
    stop_servers(running)


def test_a_long_path_is_no_obstacle(home: Path, pool: PortPool) -> None:
    deep = home / ("d" * 60) / ("e" * 60)
    stop_servers(_start(home, [_postgres(deep, pool), _s3(deep, pool)]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root must give up its identity")
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["reachable", "for root alone"])
def test_root_starts_postgres_whoever_may_enter_the_folder(
    home: Path, pool: PortPool, mode: int
) -> None:
    folder = Path(f"/tmp/jobmesh-test-{os.getpid()}")
    folder.mkdir(mode=mode)
    folder.chmod(mode)
    try:
        shard = _postgres(folder, pool)
        (running,) = _start(home, [shard])
        owner = (shard.data / "PG_VERSION").stat().st_uid
        assert (owner != 0) == (mode == 0o755)
        stop_servers([running])
        # The same data, after the folder's mode has changed: the owner follows.
        folder.chmod(0o700 if mode == 0o755 else 0o755)
        stop_servers(_start(home, [shard]))
    finally:
        shutil.rmtree(folder)


def test_a_failing_server_takes_those_started_with_it_down(home: Path, pool: PortPool) -> None:
    etcd = _etcd(home, pool)
    etcd.data.parent.mkdir(exist_ok=True)
    etcd.data.write_text("not a folder")
    with pytest.raises(LocalError, match="in the way"):
        _start(home, [_nats(home, pool), etcd])
    assert tagged(home) == []


def test_a_busy_port_is_named_before_anything_starts(home: Path, pool: PortPool) -> None:
    nats = _nats(home, pool)
    with socket.create_server((LOOPBACK, nats.port)), pytest.raises(LocalError) as caught:
        _start(home, [_postgres(home, pool), nats])
    assert f"port {nats.port}" in str(caught.value)
    assert tagged(home) == []


def test_a_server_that_ends_at_once_is_quoted(home: Path, pool: PortPool) -> None:
    shard = _postgres(home, pool)
    shard.prepare()
    (shard.data / "global" / "pg_control").write_bytes(b"")
    with pytest.raises(LocalError, match=r"shard-0 ended while starting: .*pg_control") as caught:
        _start(home, [shard])
    assert str(home / "logs" / "shard-0.log") in caught.value.hint


def test_a_missing_wheel_says_what_to_install() -> None:
    with pytest.raises(LocalError) as caught:
        program("no-such-wheel", "bin/tool")
    assert "tool is not installed" in caught.value.message
    assert "no-such-wheel" in caught.value.hint


def test_a_folder_that_cannot_be_written_is_named(home: Path, pool: PortPool) -> None:
    (home / "file").write_text("")
    with pytest.raises(LocalError, match="not writable") as caught:
        start_servers([_nats(home, pool)], home / "file" / "mesh")
    assert str(home / "file") in str(caught.value)


def test_a_full_disk_is_told_before_and_during_the_start(home: Path, pool: PortPool) -> None:
    small = home / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        with pytest.raises(LocalError, match="MB are free on the disk"):
            _start(small, [_nats(small, pool)])
        with pytest.raises(LocalError, match="is full"):
            _postgres(small, pool).prepare()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _start(home: Path, servers: list[Server]) -> list[Running]:
    return start_servers(servers, home, die_with_caller=True)


def _postgres(home: Path, pool: PortPool, name: str = "shard-0") -> Postgres:
    return Postgres(name, home / name, port=pool.take())


def _nats(home: Path, pool: PortPool) -> Nats:
    return Nats("nats", home / "nats", port=pool.take(), monitor_port=pool.take())


def _etcd(home: Path, pool: PortPool) -> Etcd:
    return Etcd("etcd", home / "etcd", port=pool.take(), peer_port=pool.take())


def _s3(home: Path, pool: PortPool) -> S3:
    return S3(
        "s3",
        home / "s3",
        port=pool.take(),
        inner_ports=[pool.take() for _ in range(INNER_PORTS)],
        access_key="key",
        secret_key="secret",
        buckets=["input", "output"],
    )


def _listening(pid: int) -> list[str]:
    import psutil

    return [
        f"{connection.laddr.ip}:{connection.laddr.port}"
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
