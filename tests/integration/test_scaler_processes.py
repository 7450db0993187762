"""Scalers, worker processes and a real etcd: growing, shrinking, crashing, taking over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from jobmesh.v1 import pool_pb2, worker_service_pb2
from jobmesh.v1 import scaler_service_pb2 as pb

from services.mesh.testing.waiting import eventually
from tests.integration.scaler_rig import Replica, Rig, counts, load, rigged, spec


@pytest.fixture
async def rig(etcd_endpoint: str, unique_prefix: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(etcd_endpoint, unique_prefix, tmp_path) as rig:
        yield rig


async def explained(replica: Replica, type_: str) -> list[pool_pb2.Decision]:
    response = await replica.stub.ExplainDecision(pb.ExplainDecisionRequest(type=type_))
    return list(response.decisions)


def reasons(decisions: list[pool_pb2.Decision]) -> list[str]:
    names = (pool_pb2.DecisionReason.Name(decision.reason) for decision in decisions)
    return [name.removeprefix("DECISION_REASON_") for name in names]


async def test_pool_grows_from_zero_and_shrinks_back_to_zero(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", max_workers=2))
    await rig.orchestrator.say(load("render", backlog=15))
    grown = await scaler.until("render", lambda pool: pool.actual == 2)
    assert counts(grown) == (2, 2, 0, 0)
    await rig.orchestrator.say()
    await scaler.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))
    await eventually(lambda: rig.pids() == [])
    assert rig.ended() == ["finished", "finished"]
    assert reasons(await explained(scaler, "render"))[:2] == ["AT_REST", "EMPTY"]
    assert scaler.process.metrics.value(
        "jobmesh_worker_starts_total", {"type": "render"}
    ) == pytest.approx(2)


async def test_jobs_too_short_for_the_statistics_keep_their_worker(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", empty_for={"seconds": 1}))
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.actual == 1)
    pid = await rig.one_pid()
    await rig.orchestrator.say()
    for _ in range(6):
        rig.finish_one(pid)
        await asyncio.sleep(0.5)
    assert counts(await scaler.pool("render")) == (1, 1, 0, 0)
    await scaler.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))
    assert rig.ended() == ["finished"]


async def test_first_worker_process_starts_within_300_ms_of_the_backlog(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render"))
    await scaler.until("render", lambda pool: reasons([pool.decision]) == ["AT_REST"])
    began = time.perf_counter()
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.starting == 1)
    took = time.perf_counter() - began
    print(f"backlog to process start: {took * 1000:.1f} ms")
    assert took < 0.3
    await rig.one_pid()


async def test_busy_worker_is_not_chosen_and_its_work_is_not_cut_short(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", max_workers=2))
    await rig.orchestrator.say(load("render", backlog=20))
    await scaler.until("render", lambda pool: pool.actual == 2)
    busy = (await rig.workers())[0].pid
    rig.busy(busy).touch()
    await rig.orchestrator.say(load("render", in_flight=1))
    await scaler.until("render", lambda pool: counts(pool) == (1, 1, 0, 0))
    assert [info.pid for info in await rig.workers()] == [busy]
    await eventually(lambda: rig.pids() == [busy])
    await rig.orchestrator.say()
    await scaler.until("render", lambda pool: counts(pool) == (0, 0, 0, 1))
    assert rig.pids() == [busy]
    assert rig.ended() == ["finished"]
    rig.busy(busy).unlink()
    await scaler.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))
    await eventually(lambda: rig.pids() == [])
    assert rig.ended() == ["finished", "finished"]


async def test_pool_of_a_paused_type_goes_home_and_comes_back_when_it_is_resumed(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", max_workers=2))
    await rig.orchestrator.say(load("render", backlog=15))
    await scaler.until("render", lambda pool: pool.actual == 2)
    await rig.registry.put(rig.keys.paused + "render", b"maintenance")
    rested = await scaler.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))
    assert "the type is paused" in rested.decision.explanation
    await scaler.until("render", lambda pool: reasons([pool.decision]) == ["PAUSED"])
    await rig.registry.delete(rig.keys.paused + "render")
    await scaler.until("render", lambda pool: pool.actual == 2)


async def test_worker_that_outlives_its_drain_gets_sigterm(rig: Rig) -> None:
    scaler = await rig.scaler(drain_grace_seconds=0.1, reconcile_seconds=0.2)
    pool = spec("render", max_workers=1)
    pool.drain_timeout.FromMilliseconds(100)
    await scaler.create(pool)
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.actual == 1)
    (pid,) = rig.pids()
    os.kill(pid, signal.SIGSTOP)  # it hears neither the call nor the clock
    await rig.orchestrator.say()
    await scaler.until("render", lambda pool: pool.draining == 1)
    await eventually(lambda: _pending_sigterm(pid))
    os.kill(pid, signal.SIGCONT)
    await eventually(lambda: rig.pids() == [])
    assert rig.ended() == ["finished"]


def _pending_sigterm(pid: int) -> bool:
    """Whether SIGTERM waits for a stopped process to go on."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) & (1 << (signal.SIGTERM - 1)))
    return False


async def test_worker_that_dies_is_replaced(rig: Rig) -> None:
    before = zombies()
    scaler = await rig.scaler(settle_seconds=0)
    await scaler.create(spec("render", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.actual == 1)
    (first,) = rig.pids()
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: _starts(scaler, "render") == 2)
    assert first in [info.pid for info in await rig.workers()], "its lease has not expired yet"
    assert rig.pids() != [first]
    assert zombies() <= before


async def test_crash_loop_is_held_back_and_explained(rig: Rig) -> None:
    before = zombies()
    scaler = await rig.scaler()
    await scaler.create(spec("render", app="crashes", max_workers=3))
    await rig.orchestrator.say(load("render", backlog=100))

    await eventually(lambda: _starts(scaler, "render") >= 4)
    await eventually(lambda: _explains(scaler, "died 2 times"))
    pool = await scaler.pool("render")
    assert reasons([pool.decision]) == ["CRASH_LOOP"]
    assert pool.desired == 3
    assert "exit code 1: ModuleNotFoundError: No module named 'shop'" in pool.decision.explanation
    assert "next try at" in pool.decision.explanation
    assert _starts(scaler, "render") == 4, "three at first, then one alone"
    assert zombies() <= before


async def _explains(scaler: Replica, text: str) -> bool:
    return text in (await scaler.pool("render")).decision.explanation


def _starts(scaler: Replica, type_: str) -> float:
    return scaler.process.metrics.value("jobmesh_worker_starts_total", {"type": type_}) or 0


def zombies() -> set[int]:
    """Children of this process that nobody collected; a stopped Scaler may leave one."""
    stats = [file for file in Path("/proc").glob("[0-9]*/stat") if _is_zombie_of_ours(file)]
    return {int(file.parent.name) for file in stats}


def _is_zombie_of_ours(stat: Path) -> bool:
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state == "Z" and int(parent) == os.getpid()


async def test_missing_directory_is_held_back_and_explained(rig: Rig) -> None:
    scaler = await rig.scaler()
    pool = spec("render")
    pool.process.directory = str(rig.folder / "nowhere")
    await scaler.create(pool)
    await rig.orchestrator.say(load("render", backlog=1))
    await eventually(lambda: _explains(scaler, "cannot start the process"))
    assert reasons([(await scaler.pool("render")).decision]) == ["CRASH_LOOP"]


async def test_worker_that_never_registers_is_given_up(rig: Rig) -> None:
    scaler = await rig.scaler(start_timeout_seconds=1, reconcile_seconds=0.2)
    await scaler.create(spec("render", app="mute", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    first = await rig.one_pid()
    await eventually(lambda: _explains(scaler, "not registered after"))
    await eventually(lambda: first not in rig.pids())


async def test_worker_that_hangs_at_its_start_is_ended_though_its_pool_was_deleted(
    rig: Rig,
) -> None:
    scaler = await rig.scaler(start_timeout_seconds=1, reconcile_seconds=0.2)
    await scaler.create(spec("render", app="mute", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    pid = await rig.one_pid()
    await scaler.stub.DeletePool(pb.DeletePoolRequest(type="render"))
    await eventually(lambda: pid not in rig.pids())


async def test_restarted_scaler_ends_who_hangs_for_a_pool_that_is_gone(rig: Rig) -> None:
    first = await rig.scaler()
    await first.create(spec("render", app="mute", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    pid = await rig.one_pid()
    await first.stub.DeletePool(pb.DeletePoolRequest(type="render"))
    await first.stop()
    await rig.scaler(start_timeout_seconds=1, reconcile_seconds=0.2)
    await eventually(lambda: pid not in rig.pids())


async def test_pool_recovers_from_a_crash_loop(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", app="crashes", max_workers=2))
    await rig.orchestrator.say(load("render", backlog=20))
    await eventually(lambda: _explains(scaler, "died at start"))
    await scaler.stub.UpdatePool(pb.UpdatePoolRequest(spec=spec("render", max_workers=2)))
    grown = await scaler.until("render", lambda pool: pool.actual == 2)
    assert reasons([grown.decision]) == ["STEADY"]


async def test_restarted_scaler_adopts_the_workers_of_its_predecessor(rig: Rig) -> None:
    first = await rig.scaler()
    await first.create(spec("render", max_workers=2))
    await rig.orchestrator.say(load("render", backlog=20))
    await first.until("render", lambda pool: pool.actual == 2)
    before = sorted(rig.pids())
    assert await first.stop() == 0
    assert sorted(rig.pids()) == before, "the workers belong to the pool, not to the Scaler"
    second = await rig.scaler()
    await eventually(lambda: second.leads)
    await second.until("render", lambda pool: counts(pool) == (2, 2, 0, 0))
    assert _starts(second, "render") == 0
    await rig.orchestrator.say()
    await second.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))
    await eventually(lambda: rig.pids() == [])
    assert rig.ended() == ["finished", "finished"]


async def test_restarted_scaler_waits_for_workers_that_were_starting(rig: Rig) -> None:
    first = await rig.scaler()
    await first.create(spec("render", app="mute", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    await first.until("render", lambda pool: pool.starting == 1)
    pid = await rig.one_pid()
    await first.stop()
    second = await rig.scaler()
    await eventually(lambda: second.leads)
    await second.scaler.reconciler.passes.more(2)
    assert counts(await second.pool("render")) == (1, 0, 1, 0)
    assert rig.pids() == [pid]


async def test_of_two_scalers_one_acts_and_both_answer(rig: Rig) -> None:
    leader = await rig.scaler(instance="one")
    await eventually(lambda: leader.leads)
    follower = await rig.scaler(instance="two")
    await follower.create(spec("render", max_workers=2))
    await rig.orchestrator.say(load("render", backlog=20))
    seen = await follower.until("render", lambda pool: pool.actual == 2)
    assert counts(seen) == (2, 2, 0, 0)
    assert (_starts(leader, "render"), _starts(follower, "render")) == (2, 0)
    assert len(rig.pids()) == 2
    own, others = await explained(leader, "render"), await explained(follower, "render")
    assert [d.explanation for d in own] == [d.explanation for d in others]
    await leader.stop()
    await eventually(lambda: follower.leads, seconds=5)
    await rig.orchestrator.say()
    await follower.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))
    assert rig.ended() == ["finished", "finished"]


async def test_statistics_that_stop_keep_the_pool_as_it_is(rig: Rig) -> None:
    scaler = await rig.scaler(stale_after_seconds=1.0)
    await scaler.create(spec("render", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.actual == 1)
    rig.orchestrator.mute = True
    await rig.orchestrator.say()
    stale = await scaler.until(
        "render", lambda pool: reasons([pool.decision]) == ["STALE_STATS"], seconds=15
    )
    assert counts(stale) == (1, 1, 0, 0)
    assert "the statistics are" in stale.decision.explanation
    streams = rig.orchestrator.streams
    await eventually(lambda: rig.orchestrator.streams > streams)
    rig.orchestrator.mute = False
    await scaler.until("render", lambda pool: counts(pool) == (0, 0, 0, 0))


async def test_statistics_without_a_shard_do_not_shrink_a_pool(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.actual == 1)
    await rig.orchestrator.say(missing=("s1",))
    await scaler.until("render", lambda pool: reasons([pool.decision]) == ["STALE_STATS"])
    await scaler.scaler.reconciler.passes.more(5)
    assert counts(await scaler.pool("render")) == (1, 1, 0, 0)


async def test_worker_started_by_hand_counts_but_is_never_told_to_go(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", max_workers=2))
    info = worker_service_pb2.WorkerInfo(
        worker_id="mine", types=[worker_service_pb2.TypeCapacity(type="render", capacity=1)]
    )
    await rig.registry.put(rig.keys.worker("mine"), info.SerializeToString())
    await scaler.until("render", lambda pool: pool.actual == 1)
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: counts(pool) == (1, 1, 0, 0))
    await rig.orchestrator.say()
    rested = await scaler.until("render", lambda pool: pool.desired == 0)
    assert (rested.actual, rested.draining) == (1, 0)
    assert rig.pids() == []


async def test_deleting_a_pool_drains_its_workers(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(spec("render", max_workers=1))
    await rig.orchestrator.say(load("render", backlog=1))
    await scaler.until("render", lambda pool: pool.actual == 1)
    await scaler.stub.DeletePool(pb.DeletePoolRequest(type="render"))
    await eventually(lambda: rig.pids() == [])
    assert rig.ended() == ["finished"]
    status = f"{rig.keys.prefix}/pool-status/"

    async def forgotten() -> bool:
        return await rig.registry.entries(status) == []

    await eventually(forgotten)


async def test_pool_without_a_driver_is_decided_about_but_not_acted_on(rig: Rig) -> None:
    scaler = await rig.scaler()
    await scaler.create(pool_pb2.PoolSpec(type="render", target_backlog_per_worker=10))
    await rig.orchestrator.say(load("render", backlog=25))
    pool = await scaler.until("render", lambda pool: pool.desired == 3)
    assert (pool.actual, pool.starting) == (0, 0)
    assert rig.pids() == []


async def test_process_ends_cleanly_and_leaves_its_workers(rig: Rig) -> None:
    """The real command: `python -m services.scaler`."""
    seed = await rig.scaler()
    await seed.create(spec("render", max_workers=1))
    await seed.stop()
    await rig.orchestrator.say(load("render", backlog=1))
    config = rig.config()
    environ = {
        **os.environ,
        "JOBMESH_ETCD_ENDPOINTS": ",".join(config.etcd_endpoints),
        "JOBMESH_ETCD_PREFIX": config.etcd_prefix,
        "JOBMESH_ORCHESTRATOR_TARGET": config.orchestrator_target,
        "JOBMESH_WORKER_COMMAND": ",".join(config.worker_command),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.scaler", "--listen", "127.0.0.1:0"),
        *("--local-workers-dir", str(rig.folder)),
        env=environ,
    )
    try:
        await eventually(lambda: _registered(rig))
    finally:
        process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert len(rig.pids()) == 1


async def _registered(rig: Rig) -> bool:
    return len(await rig.workers()) == 1
