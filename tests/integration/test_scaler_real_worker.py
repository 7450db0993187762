"""The Scaler with the real worker: up from zero, and down again around a job under way."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.mesh.bus import Subjects
from services.mesh.bus.nats import NatsBus
from services.mesh.testing.waiting import eventually
from tests.integration.scaler_rig import Rig, SaidLoad, counts, load, rigged, spec
from tests.integration.worker_rig import Orchestrator, Scheduler, dispatch, new_job

HANDLERS = """
import asyncio
from pathlib import Path
from jobmesh import job

@job("bake", capacity=1)
async def bake(files: dict) -> str:
    Path(files["started"]).touch()
    while not Path(files["go_on"]).exists():
        await asyncio.sleep(0.02)
    return "baked"
"""


class Neighbours(SaidLoad, Orchestrator):
    """Says the load, and commits what workers report."""

    def __init__(self) -> None:
        SaidLoad.__init__(self)
        Orchestrator.__init__(self)


@pytest.fixture
async def rig(
    etcd_endpoint: str,
    nats_url: str,
    unique_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Rig]:
    monkeypatch.setenv("JOBMESH_NATS_URL", nats_url)
    monkeypatch.setenv("JOBMESH_NATS_PREFIX", unique_prefix)
    (tmp_path / "bakery.py").write_text(HANDLERS)
    neighbours = Neighbours()  # type: ignore[abstract]
    async with rigged(etcd_endpoint, unique_prefix, tmp_path / "workers", neighbours) as rig:
        rig.settings["worker_command"] = (sys.executable, "-m", "services.worker")
        yield rig


@pytest.fixture
async def scheduler(nats_url: str, unique_prefix: str) -> AsyncIterator[Scheduler]:
    bus = NatsBus(nats_url, name="test")
    await bus.start()
    await bus.wait_connected(10)
    scheduler = Scheduler(bus, Subjects(unique_prefix))
    await scheduler.start()
    yield scheduler
    await bus.stop()


async def test_busy_worker_finishes_its_job_while_the_pool_shrinks_to_zero(
    rig: Rig, scheduler: Scheduler, tmp_path: Path
) -> None:
    scaler = await rig.scaler()
    pool = spec("bake", app="bakery", max_workers=2)
    pool.target_backlog_per_worker = 1
    pool.process.directory = str(tmp_path)
    await scaler.create(pool)
    await rig.orchestrator.say(load("bake", backlog=2))
    await scaler.until("bake", lambda pool: pool.actual == 2)

    job, started, go_on = new_job(), tmp_path / "started", tmp_path / "go_on"
    files = {"started": str(started), "go_on": str(go_on)}
    parked = await scheduler.dispatch("bake", dispatch(job, files))
    await eventually(started.exists)

    await rig.orchestrator.say(load("bake", in_flight=1))
    await scaler.until("bake", lambda pool: counts(pool) == (1, 1, 0, 0))
    assert [info.worker_id for info in await rig.workers()] == [parked.grab.worker_id]

    await rig.orchestrator.say()  # wrong, but the job must outlive even that
    await scaler.until("bake", lambda pool: counts(pool) == (0, 0, 0, 1))
    assert len(rig.pids()) >= 1
    go_on.touch()
    assert isinstance(rig.orchestrator, Neighbours)
    await rig.orchestrator.reported(job, "succeeded")
    await scaler.until("bake", lambda pool: counts(pool) == (0, 0, 0, 0))
    await eventually(lambda: rig.pids() == [])
    assert "handed_back" not in rig.orchestrator.kinds(job)


async def test_restarted_scaler_adopts_real_workers(rig: Rig, tmp_path: Path) -> None:
    first = await rig.scaler()
    pool = spec("bake", app="bakery", max_workers=1)
    pool.process.directory = str(tmp_path)
    await first.create(pool)
    await rig.orchestrator.say(load("bake", backlog=1))
    await first.until("bake", lambda pool: pool.actual == 1)
    before = rig.pids()
    await first.stop()
    second = await rig.scaler()
    await eventually(lambda: second.leads)
    await second.scaler.reconciler.passes.more(1)
    await second.until("bake", lambda pool: counts(pool) == (1, 1, 0, 0))
    assert rig.pids() == before
    await rig.orchestrator.say()
    await second.until("bake", lambda pool: counts(pool) == (0, 0, 0, 0))
    await eventually(lambda: rig.pids() == [])


async def test_app_without_the_type_is_held_back_and_explained(rig: Rig, tmp_path: Path) -> None:
    scaler = await rig.scaler()
    pool = spec("fry", app="bakery", max_workers=1)
    pool.process.directory = str(tmp_path)
    await scaler.create(pool)
    await rig.orchestrator.say(load("fry", backlog=1))

    async def explained() -> bool:
        return "has no type 'fry'" in (await scaler.pool("fry")).decision.explanation

    await eventually(explained)
