"""The services' own loops in a simulated mesh: many seeds pass, and broken meshes are found out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.breaking import BREAKS

ROOT = Path(__file__).parents[3]
SEEDS = 60
#: A broken mesh has to show within so many.
BROKEN_SEEDS = 40


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the order of sets is part of what a seed decides."""
    roots = os.pathsep.join(str(ROOT / part) for part in (".", "gen", "sdk", "deploy"))
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": roots, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(240)
def test_every_seed_keeps_the_promises() -> None:
    done = run("--seeds", str(SEEDS), "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "PASS" in done.stdout


@pytest.mark.timeout(240)
@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_mesh_is_found_out(broken: str) -> None:
    for first in range(0, BROKEN_SEEDS, 8):
        done = run("--seeds", "8", "--first", str(first), "--processes", "1", "--break", broken)
        if done.returncode:
            assert "FAIL" in done.stdout, done.stderr[-2000:]
            return
    raise AssertionError(f"{broken} passed {BROKEN_SEEDS} seeds")


@pytest.mark.timeout(120)
def test_a_seed_tells_the_same_story_twice() -> None:
    assert run("--show", "7").stdout == run("--show", "7").stdout != ""
