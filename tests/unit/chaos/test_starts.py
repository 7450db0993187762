"""Of two versions that share a mesh each process runs one, and the other after it was down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.links import Links
from tests.chaos.starts import SKEWED, Starts
from tests.unit.chaos.story import Story

HERE = Path(__file__).resolve().parents[3]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A checkout with a service that says where it comes from, and with nothing else."""
    services = tmp_path / "before" / "services"
    services.mkdir(parents=True)
    (services / "__init__.py").write_text("")
    (services / "enqueue.py").write_text("print('before')")
    return services.parent


def runs_before(starts: Starts, unit: str) -> bool:
    """Start a process as a unit, where this version lies."""
    told = starts.told(unit, {"PATH": os.defpath})
    command = [sys.executable, "-m", "services.enqueue", "--help"]
    ran = subprocess.run(command, cwd=HERE, env=told, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout == "before\n"


def test_replicas_begin_with_different_versions_and_change_with_every_turn(before: Path) -> None:
    starts = Starts(Links(), before)
    assert [runs_before(starts, unit) for unit in ("enqueue", "enqueue-2")] == [False, True]
    starts.turn("enqueue")
    assert [runs_before(starts, unit) for unit in ("enqueue", "enqueue-2")] == [True, True]
    starts.turn("enqueue")
    assert not runs_before(starts, "enqueue")
    assert starts.versions() == {"enqueue": ["before", "now"]}


def test_a_wrong_clock_is_told_to_either_version(before: Path) -> None:
    starts = Starts(Links(), before)
    for unit, paths in (("worker-1", [SKEWED]), ("worker-2", [SKEWED, before])):
        starts.skew(unit, 3.0)
        told = starts.told(unit, {"OTHER": "stays"})
        assert told["PYTHONPATH"].split(os.pathsep)[:2] == list(map(str, paths))
        assert (told["CHAOS_CLOCK_SKEW"], told["OTHER"]) == ("3.0", "stays")
        starts.skew(unit, None)
        assert "CHAOS_CLOCK_SKEW" not in starts.told(unit, {})


def test_without_another_version_there_is_one() -> None:
    starts = Starts(Links())
    for unit in ("scheduler", "scheduler-2"):
        starts.turn(unit)
        assert starts.told(unit, {"A": "b"}) == {"A": "b"}
    assert starts.versions() == {}


def test_a_run_in_which_a_service_had_one_version_only_is_invalid() -> None:
    story = Story()
    story.job("a")
    story.evidence.plan["before"] = "../before"
    assert check(story.evidence).invalid == ["nobody wrote down which versions ran"]
    story.evidence.versions = {"enqueue": ["before", "now"], "scaler": ["now"]}
    assert check(story.evidence).invalid == ["scaler: every start was of one version"]
    story.evidence.versions["scaler"] = ["before", "now"]
    assert check(story.evidence).invalid == []
