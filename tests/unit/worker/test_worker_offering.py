"""What a worker says its functions ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.runtime import StartupError
from services.worker.adapters.offering import load_offering
from services.worker.config import WorkerConfig


def test_functions_are_named_with_what_they_ask_for_and_commands_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking_app.py").write_text(
        "from jobmesh import App, Retry, job\n"
        "app = App('asking')\n"
        "app.command('count', ['wc', '-w'])\n"
        "@app.job('plain')\ndef plain(): ...\n"
        "@app.job('short', retries=3, timeout=1.5)\ndef short(): ...\n"
        "@app.job('long', retry=Retry.fixed('5s', attempts=7))\ndef long(): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    offering = load_offering(WorkerConfig(app="asking_app"))
    policies = offering.retry_policies
    assert set(policies) == {"plain", "short", "long"}
    assert policies["plain"] is None
    attempts = {type_: one.max_attempts for type_, one in policies.items() if one is not None}
    assert attempts == {"short": 4, "long": 7}
    assert set(offering.asked) == set(policies)
    assert offering.asked["plain"] == TypeSettings()
    short = offering.asked["short"]
    assert (short.handler_retry_policy.max_attempts, short.handler_run_timeout.nanos) == (4, 5e8)


def test_a_policy_that_no_job_may_have_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greedy_app.py").write_text(
        "from jobmesh import Retry, job\n"
        "@job('x', retry=Retry.exponential(factor=1000))\ndef x(): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StartupError, match=r"job 'x': retry: factor .*100"):
        load_offering(WorkerConfig(app="greedy_app"))
