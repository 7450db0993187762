"""The commands behind `make` that no other test runs: each can at least say what it does."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOOLS = (
    "tests.bench",
    "tests.bench.capacity",
    "tests.bench.growth",
    "tests.bench.overload",
    "tests.bench.peers",
    "tests.bench.timing",
    "tests.chaos",
    "tests.failpoints",
    "tests.mutants",
    "tests.simulation",
    "tests.soak",
)


@pytest.mark.parametrize("module", TOOLS)
def test_every_tool_starts(module: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert "usage:" in said.stdout
