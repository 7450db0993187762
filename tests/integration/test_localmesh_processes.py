"""Processes: known by pid and start time, found by their mark, ended for certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from localmesh.errors import LocalError
from localmesh.ports import PortPool, is_free, require_free
from localmesh.processes import Command, Process, descendants, spawn, tagged

SLEEP = ["sleep", "600"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "unit.log"


@pytest.fixture
def sleeper(tmp_path: Path, log: Path) -> Iterator[Process]:
    process = spawn(Command(SLEEP, cwd=tmp_path), log, home=tmp_path)
    yield process
    process.stop()


def test_a_process_with_another_start_time_is_never_signalled(sleeper: Process) -> None:
    successor = Process(sleeper.pid, sleeper.start_time - 1)
    assert not successor.alive()
    assert not successor.signal(signal.SIGKILL)
    assert successor.wait(0)
    assert sleeper.alive()


def test_stop_ends_a_willing_process_at_the_first_signal(tmp_path: Path, log: Path) -> None:
    process = spawn(Command(SLEEP, cwd=tmp_path), log, home=tmp_path)
    assert process.stop()
    assert not process.alive()
    assert process.stop(), "stopping what is gone is fine"


def test_stop_escalates_to_kill(tmp_path: Path, log: Path) -> None:
    process = spawn(Command(STUBBORN, cwd=tmp_path), log, home=tmp_path)
    _wait_for(log, "ready")
    assert not process.stop(((signal.SIGTERM, 0.05), (signal.SIGKILL, 5)))
    assert not process.alive()


def test_stop_also_ends_a_frozen_process(tmp_path: Path, log: Path) -> None:
    process = spawn(Command(SLEEP, cwd=tmp_path), log, home=tmp_path)
    process.signal(signal.SIGSTOP)
    assert process.stop(((signal.SIGTERM, 5), (signal.SIGKILL, 5)))


def test_a_process_is_found_by_its_mark_and_so_are_its_children(tmp_path: Path, log: Path) -> None:
    parent = spawn(
        Command(["sh", "-c", "sleep 600 & echo ready; wait"], tmp_path), log, home=tmp_path
    )
    _wait_for(log, "ready")
    (child,) = descendants({parent})
    assert set(tagged(tmp_path)) == {parent, child}
    assert tagged(tmp_path / "elsewhere") == []
    for process in (child, parent):
        process.stop()
    assert tagged(tmp_path) == []


def test_usage_tells_cpu_memory_and_age() -> None:
    own = Process.of(os.getpid())
    assert own is not None
    usage = own.usage()
    assert usage is not None
    assert usage.cpu_seconds > 0
    assert usage.memory_bytes > usage.private_bytes > 1 << 20
    assert 0 < usage.uptime_seconds < 86400


def test_output_is_appended_to_the_log(tmp_path: Path, log: Path) -> None:
    for word in ("one", "two"):
        assert spawn(Command(["echo", word], cwd=tmp_path), log, home=tmp_path).wait(5)
    assert log.read_text() == "one\ntwo\n"


def test_timers_of_a_process_have_the_slack_it_was_started_with(tmp_path: Path, log: Path) -> None:
    tell = ["cat", "/proc/self/timerslack_ns"]
    for slack in (0.2, 0.0):
        assert spawn(Command(tell, tmp_path, timer_slack=slack), log, home=tmp_path).wait(5)
    with_slack, without = (int(line) for line in log.read_text().split())
    assert with_slack == 200_000_000
    assert without < 1_000_000


def test_processes_die_with_a_killed_test_process(tmp_path: Path, log: Path) -> None:
    script = f"""
        import signal, sys, time
        from pathlib import Path
        from localmesh.processes import Command, spawn
        home = Path({str(tmp_path)!r})
        spawn(Command(["sleep", "600"], home), home / "x.log", home=home,
              death_signal=signal.SIGKILL)
        print("ready", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (child,) = tagged(tmp_path)
        parent.kill()
    assert child.wait(5)


def test_open_pools_never_hand_out_the_same_port() -> None:
    with PortPool() as one, PortPool() as other:
        ports = [pool.take() for _ in range(50) for pool in (one, other)]
    assert len(set(ports)) == 100
    assert all(is_free(port) for port in ports)


def test_a_busy_port_is_named_with_its_holder() -> None:
    import socket

    with PortPool() as pool, socket.socket() as busy:
        port = pool.take()
        busy.bind(("127.0.0.1", port))
        busy.listen()
        with pytest.raises(LocalError) as caught:
            require_free("nats", [port])
    assert f"port {port}" in caught.value.message
    assert "nats" in caught.value.message
    assert f"pid {os.getpid()} " in caught.value.message
    assert "JOBMESH_BASE_PORT" in caught.value.hint
    assert "\n" not in str(caught.value)


def _wait_for(log: Path, word: str) -> None:
    with subprocess.Popen(["tail", "-n", "+1", "-F", log], stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        for line in tail.stdout:
            if word.encode() in line:
                break
        tail.terminate()
