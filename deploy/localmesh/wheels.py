"""Finding the server programs inside the PyPI wheels that carry them."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from localmesh.errors import LocalError


def program(wheel: str, suffix: str) -> Path:
    """The program that `wheel` installed under a path ending in `suffix` (such as "bin/weed")."""
    try:
        files = distribution(wheel).files or []
    except PackageNotFoundError:
        raise _missing(wheel, suffix) from None
    for file in files:
        if file.as_posix().endswith("/" + suffix):
            path = Path(os.path.normpath(str(file.locate())))
            if os.access(path, os.X_OK):
                return path
    raise _missing(wheel, suffix)


def _missing(wheel: str, suffix: str) -> LocalError:
    return LocalError(
        f"the server program {suffix.rpartition('/')[2]} is not installed",
        f"Install the wheel {wheel}, best with: pip install '/path/to/jobmesh[local]'",
    )
