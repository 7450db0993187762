"""The shipped examples, through the same codec as in a worker and without servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobmesh import InputError
from jobmesh import examples as jobs
from jobmesh.testing import make_context, run_job


def test_the_test_of_an_example_runs_as_its_readme_says() -> None:
    folder = Path(__file__).parents[3] / "examples"
    said = re.search(r"`python (-m pytest [^`]+)`", (folder / "README.md").read_text())
    assert said is not None
    environment = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *said[1].split(), "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_echo_returns_its_input() -> None:
    assert run_job(jobs.echo, {"hello": [1, None]}) == {"hello": [1, None]}
    assert run_job(jobs.echo) is None


@pytest.mark.parametrize(("below", "count"), [(0, 0), (2, 0), (3, 1), (100, 25), (7920, 1000)])
def test_primes_are_counted(below: int, count: int) -> None:
    assert run_job(jobs.primes, {"below": below}) == count


def test_wordcount_turns_a_file_into_a_file(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat\nthe dog\n")
    assert run_job(jobs.wordcount, text).splitlines()[0] == b"the,2"


def test_nap_says_how_long_and_in_which_attempt() -> None:
    said: list[float] = []
    slept = run_job(jobs.nap, jobs.Nap(0.01), attempt=2, on_progress=lambda d, t, m: said.append(t))
    assert slept == "slept 0.01 s in attempt 2"
    assert said == [0.01]
    assert run_job(jobs.pause, {"seconds": 0}) == "paused 0 s"


def test_flaky_fails_as_often_as_told() -> None:
    with pytest.raises(RuntimeError, match="attempt 2 fails on purpose"):
        run_job(jobs.flaky, {"failures": 2}, attempt=2)
    assert run_job(jobs.flaky, {"failures": 2}, attempt=3) == "succeeded in attempt 3"


def test_an_input_the_handler_cannot_take_is_refused_before_it_runs() -> None:
    with pytest.raises(InputError, match="below: expected int, got str"):
        run_job(jobs.primes, {"below": "many"})
    with pytest.raises(InputError, match=r"expected bytes or a pathlib\.Path, got dict"):
        run_job(jobs.wordcount, {})


def test_a_handler_can_be_called_directly_with_a_made_up_context() -> None:
    assert jobs.primes(jobs.Below(10), make_context()) == 4


async def test_an_async_handler_can_be_run_in_an_async_test() -> None:
    assert run_job(jobs.pause, {"seconds": 0}) == "paused 0 s"
