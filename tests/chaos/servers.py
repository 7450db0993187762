"""What is done to a server itself: its settings, and the files it may write."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg
from localmesh.processes import Account, identity, tool


def alter_system(dsn: str, setting: str) -> None:
    """Change a setting of a Postgres that may be read only."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        connection.execute("SELECT pg_reload_conf()")


def limit_files(pid: int, limit: str) -> bool:
    """The soft limit only, and as the server's own account: then it can be lifted again. Whether it
    was set.
    """
    with suppress(FileNotFoundError):  # it has ended
        owner = Path(f"/proc/{pid}").stat()
        command = [tool("prlimit"), "--pid", str(pid), f"--fsize={limit}:"]
        as_owner = identity(Account(owner.st_uid, owner.st_gid) if os.getuid() == 0 else None)
        done = subprocess.run(command, check=False, capture_output=True, **as_owner)
        return done.returncode == 0
    return False
