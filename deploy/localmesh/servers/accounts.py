"""Running a server that refuses root, when we are root.

Two ways. If the unprivileged account can reach both program and data, the server simply runs under
it. If a folder on the way belongs to root alone (a home under /root, a test's temporary folder), it
runs in a user namespace where root appears as that account: the files stay root's, and nothing
needs copying.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from localmesh.errors import LocalError, explained
from localmesh.processes import Account, tool

_NAME = "nobody"


@dataclass(frozen=True)
class Unprivileged:
    """How to run a program on a data folder without root's identity."""

    program: Path
    data: Path

    @cached_property
    def account(self) -> Account | None:
        """The account to switch to; None when we are not root or use a namespace instead."""
        if os.geteuid() != 0:
            return None
        account = _nobody()
        reachable = _reachable(self.program, account) and _reachable(self.data.parent, account)
        return account if reachable else None

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command line, inside a user namespace where that is the way."""
        if os.geteuid() != 0 or self.account is not None:
            return list(argv)
        nobody = _nobody()
        prefix = [
            tool("unshare"),
            "--user",
            f"--map-user={nobody.uid}",
            f"--map-group={nobody.gid}",
        ]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
            raise LocalError(
                f"Postgres refuses root, and the account {_NAME} cannot reach {self.data.parent}",
                "Set JOBMESH_HOME to a folder that every user may enter, or do not run as root",
            )
        return [*prefix, "--", *argv]

    def own(self) -> None:
        """Give the data folder to whoever will appear as its owner to the server."""
        if os.geteuid() != 0:
            return
        account = self.account or Account(0, 0)
        if self.data.stat().st_uid == account.uid:
            return
        with explained(self.data):
            for folder, _, files in os.walk(self.data):
                for path in (folder, *(os.path.join(folder, file) for file in files)):
                    os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _nobody() -> Account:
    try:
        entry = pwd.getpwnam(_NAME)
    except KeyError:
        raise LocalError(
            f"there is no account {_NAME} to run Postgres under", "Do not run as root"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)


def _reachable(path: Path, account: Account) -> bool:
    """Whether the account may enter every folder down to `path`."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        info = folder.stat()
        entry = stat.S_IXUSR if info.st_uid == account.uid else stat.S_IXOTH
        if not info.st_mode & entry:
            return False
    return True
