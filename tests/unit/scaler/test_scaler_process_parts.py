"""The process driver's parts that need no mesh."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.mesh.clock import ManualClock
from services.mesh.telemetry.metrics import Metrics
from services.mesh.testing.waiting import eventually
from services.scaler.adapters.process.crew import ProcessCrew
from services.scaler.adapters.process.driver import ProcessDriver
from services.scaler.adapters.process.handle import ExitWatch, ProcessHandle
from services.scaler.adapters.process.launcher import Launcher, worker_environment
from services.scaler.app.metrics import PoolMetrics
from services.scaler.domain.fleet import Worker
from services.scaler.domain.pool import PoolSpec, ProcessLaunch

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")
APP = ProcessLaunch("shop.jobs", capacity=3)


def spec(**values: object) -> PoolSpec:
    return PoolSpec(type="render", process=APP, **values)  # type: ignore[arg-type]


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(SLEEPER, dict(os.environ), tmp_path / "workers", ManualClock())


def arguments_of(pid: int) -> list[str]:
    """What follows the command itself."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[len(SLEEPER) : -1]


async def ended(pid: int) -> None:
    event = asyncio.Event()
    watch = ExitWatch(pid, event.set)
    async with asyncio.timeout(5):
        await event.wait()
    watch.close()


async def test_process_is_started_with_its_flags_in_a_session_of_its_own(
    launcher: Launcher,
) -> None:
    launched = launcher.launch(spec(drain_timeout=timedelta(seconds=7)), APP)
    assert launched.child is not None
    flags = [
        *("--app", "shop.jobs", "--types", "render", "--listen", "127.0.0.1:0"),
        *("--started-by", "scaler", "--drain-seconds", "7", "--capacity", "3"),
    ]
    # The kernel shows them once the new program is in place: on a busy machine, a moment later.
    await eventually(lambda: arguments_of(launched.process.pid) == flags)
    assert os.getsid(launched.process.pid) == launched.process.pid
    assert launched.process.terminate()
    await ended(launched.process.pid)
    assert launched.child.wait() == -15
    assert not launched.process.alive()
    assert not launched.process.terminate()


async def test_successor_finds_what_still_lives_and_clears_the_records_of_the_dead(
    launcher: Launcher, tmp_path: Path
) -> None:
    living, dead = (launcher.launch(spec(), APP) for _ in range(2))
    assert dead.child is not None
    assert living.child is not None
    dead.process.terminate()
    dead.child.wait()
    successor = Launcher(SLEEPER, {}, tmp_path / "workers", ManualClock())
    assert [found.process for found in successor.left_behind()] == [living.process]
    assert not dead.record.exists()
    living.process.terminate()
    living.child.wait()


DEAF = (
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); signal.pause()",
)
TEN_SECONDS = timedelta(seconds=10)


class DeafWorker:
    """A worker that does not register and ignores SIGTERM, in a crew that waits ten seconds."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.gone = ManualClock(), asyncio.Event()
        self.crew = ProcessCrew(
            "render",
            self.clock,
            PoolMetrics(Metrics()),
            self.gone.set,
            start_timeout=TEN_SECONDS,
            settle=TEN_SECONDS,
            grace=TEN_SECONDS,
        )
        launcher = Launcher(DEAF, {"PYTHONUNBUFFERED": "1"}, folder, self.clock)
        self.launched = launcher.launch(spec(), APP)
        self.crew.join(self.launched)

    async def deaf(self) -> None:
        await eventually(lambda: self.launched.log.read_text() == "deaf\n")

    def look(self, after: float, *registered: Worker) -> tuple[int, int]:
        """How many are starting, and how often one died, at a later look."""
        self.clock.advance(after)
        self.crew.review(registered, APP)
        return self.crew.starting, self.crew.crashes.rounds

    async def ended(self) -> int:
        async with asyncio.timeout(5):
            await self.gone.wait()
        assert self.launched.child is not None
        return self.launched.child.wait()


async def test_worker_that_hangs_at_its_start_counts_until_it_was_killed(tmp_path: Path) -> None:
    worker = DeafWorker(tmp_path)
    await worker.deaf()
    assert worker.look(9) == (1, 0)
    assert worker.look(2) == (1, 1), "SIGTERM"
    assert worker.look(9) == (1, 1)
    assert worker.launched.process.alive()
    assert worker.look(2) == (1, 1), "SIGKILL"
    assert await worker.ended() == -signal.SIGKILL
    assert worker.look(0) == (0, 1), "it was one crash"


async def test_worker_that_registers_too_late_is_not_killed(tmp_path: Path) -> None:
    worker = DeafWorker(tmp_path)
    await worker.deaf()
    assert worker.look(9) == (1, 0)
    assert worker.look(2) == (1, 1), "SIGTERM"
    late = Worker("w", {"render": 1}, pid=worker.launched.process.pid)
    assert worker.look(11, late) == (0, 0)
    assert worker.launched.process.alive()
    assert worker.launched.process.kill()
    await worker.ended()


def written(folder: Path, pattern: str) -> list[str]:
    return [file.read_text() for file in folder.glob(pattern)]


async def test_worker_that_hangs_at_its_start_is_killed_though_its_pool_is_gone(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    driver = ProcessDriver(
        Launcher(DEAF, {"PYTHONUNBUFFERED": "1"}, tmp_path, clock),
        None,  # type: ignore[arg-type]
        clock,
        PoolMetrics(Metrics()),
        host="here",
        start_timeout=TEN_SECONDS,
        settle=TEN_SECONDS,
        drain_grace=TEN_SECONDS,
    )
    gone = asyncio.Event()
    driver.on_change(gone.set)
    assert await driver.grow(spec(), 1) == 1
    await eventually(lambda: written(tmp_path, "*.log") == ["deaf\n"])

    def look(after: float) -> None:
        clock.advance(after)
        driver.observe_others({"other"}, [])

    for seconds in (9, 2, 9):  # SIGTERM after ten
        look(seconds)
        assert len(written(tmp_path, "*.launch")) == 1
    assert driver.observe(spec(), []).starting == 1, "a pool that is made anew has it already"
    look(2)  # SIGKILL
    async with asyncio.timeout(5):
        await gone.wait()
    look(0)
    assert written(tmp_path, "*.launch") == []
    assert driver.observe(spec(), []).starting == 0


def test_record_of_a_pid_that_somebody_else_has_now_is_not_believed(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    record = folder / "render.launch"
    record.write_text(f'{{"pid": {os.getpid()}, "start_time": 1, "type": "render", "log": "x"}}')
    assert list(launcher.left_behind()) == []
    assert not record.exists()


def test_only_the_newest_logs_are_kept(launcher: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    for number in range(30):
        log = folder / f"render-20300101T000000-1-{number}.log"
        log.touch()
        os.utime(log, (number, number))
    (folder / "other-20300101T000000-1-1.log").touch()
    launched = launcher.launch(spec(), APP)
    left = sorted(path.name for path in folder.glob("render-*-1-*.log"))
    assert len(left) == 20
    assert "render-20300101T000000-1-29.log" in left
    assert (folder / "other-20300101T000000-1-1.log").exists()
    assert launched.child is not None
    launched.process.terminate()
    launched.child.wait()


def test_start_time_tells_a_process_from_a_later_one_with_its_pid() -> None:
    me = ProcessHandle.of(os.getpid())
    assert me is not None
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    began = datetime.fromtimestamp(booted + me.start_time / os.sysconf("SC_CLK_TCK"), UTC)
    assert me.fits(began + timedelta(seconds=1))
    assert not me.fits(began - timedelta(hours=1))
    assert not me.fits(began + timedelta(hours=1))
    assert not me.fits(None)


def test_zombie_does_not_count_as_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.DEVNULL)
    handle = ProcessHandle.of(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert handle is None or not handle.alive()
    child.wait()


def test_worker_inherits_the_environment_but_not_what_is_the_scalers_own() -> None:
    own = {"JOBMESH_LISTEN": "127.0.0.1:7105", "JOBMESH_METRICS_LISTEN": "127.0.0.1:8105"}
    shared = {"JOBMESH_NATS_URL": "nats://here", "PATH": "/bin"}
    made = worker_environment({**own, **shared}, {"JOBMESH_ETCD_PREFIX": "/x"})
    assert made == {**shared, "JOBMESH_ETCD_PREFIX": "/x", "PYTHONUNBUFFERED": "1"}
