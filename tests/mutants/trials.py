"""The trials: which services are broken and how, what is done meanwhile, which rule must object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psycopg
from jobmesh.v1 import scheduler_service_pb2
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from services.mesh.testing.waiting import eventually
from tests.chaos.orders import STEADY_SECONDS
from tests.failpoints.rig import PATIENCE, Rig

Faults = Callable[[Rig], Awaitable[None]]
Mix = Mapping[str, float]

QUICK: Mix = {"plain": 6, "batch": 3, "keyed": 3, "flaky": 3}
LONG: Mix = {"long": 6, "large": 2, "plain": 3}
STEADY: Mix = {"steady": 6, "plain": 3}
RIVALS: Mix = {"rivals": 1, "crowd": 1}
SNOOZE: Mix = {"snoozing": 4, "plain": 1}


async def nothing(rig: Rig) -> None:
    """The load is enough."""


async def freeze_a_worker(rig: Rig) -> None:
    """One worker stands still for longer than its lease, until others run what it had in hand and
    its own handlers would be done: so they are when it goes on, before anybody can stop them.
    """
    name = rig.crew.names[0]
    await eventually(lambda: _running(rig.ledger, rig.crew.pid(name)) >= 3, PATIENCE)
    rig.crew.freeze(name)
    had = _begun(rig.ledger)
    await eventually(lambda: bool(_done_meanwhile(rig.ledger, had)), PATIENCE)
    rig.crew.thaw(name)


def _lines(ledger: Path) -> list[list[str]]:
    return [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []


def _running(ledger: Path, pid: int) -> int:
    """Handlers that began in a process and have not ended."""
    mine = [line for line in _lines(ledger) if line[4] == str(pid)]
    return sum(1 if line[0] == "S" else -1 for line in mine)


def _begun(ledger: Path) -> dict[str, int]:
    """Jobs that run, by their fence."""
    ended = {line[1] for line in _lines(ledger) if line[0] == "E"}
    return {line[1]: int(line[2]) for line in _lines(ledger) if line[1] not in ended}


def _again(ledger: Path, had: Mapping[str, int]) -> list[str]:
    """Of these, those that began once more."""
    return [line[1] for line in _lines(ledger) if int(line[2]) > had.get(line[1], 1 << 30)]


def _done_meanwhile(ledger: Path, had: Mapping[str, int]) -> list[str]:
    """Of these, those that began once more, and would have ended by now where they began first."""
    old = time.time() - STEADY_SECONDS - 0.3
    first = {line[1] for line in _lines(ledger) if line[0] == "S" and float(line[6]) < old}
    return [job for job in _again(ledger, had) if job in first]


async def lose_a_dispatch(rig: Rig) -> None:
    """Answers to grabs are lost until one with jobs was among them: most may be empty."""
    await rig.arm("worker", "worker.received", "drop@1+")
    await eventually(lambda: asyncio.to_thread(_lost_dispatches, rig), PATIENCE)
    await rig.disarm()


def _lost_dispatches(rig: Rig) -> int:
    """Jobs that were sent a while ago, and have not arrived."""
    query = "SELECT count(*) FROM jobs WHERE state = 2 AND dispatch_time < now() - interval '0.5 s'"
    found = 0
    for dsn in rig.mesh.shard_dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
            found += row[0] if row else 0
    return found


async def hold_transactions_open(rig: Rig) -> None:
    """The firing of schedules commits late, while others come and go."""
    await rig.arm("scheduler", "scheduler.fire.uncommitted", "delay:700ms@1+")


async def lose_answers_of_shards(rig: Rig) -> None:
    await rig.arm("orchestrator", "orchestrator.put.committed", "raise@4+")


async def kill_enqueue(rig: Rig) -> None:
    """Watches break in the middle, and are resumed by token."""
    watches = rig.ledger.with_name("watches.jsonl")

    def told() -> int:
        lines = watches.read_text().splitlines() if watches.exists() else []
        return sum('"ids-' in line and '"told"' in line for line in lines)

    await eventually(lambda: told() > 1, PATIENCE)
    await asyncio.to_thread(rig.mesh.kill, "enqueue")
    await rig.healed()


async def fire_twice_at_once(rig: Rig) -> None:
    """Both schedulers fire the same schedules, and take their time to commit."""
    await rig.arm("scheduler", "scheduler.fire.uncommitted", "delay:300ms@1+")
    async with asyncio.TaskGroup() as group:
        for target in rig.mesh.targets("scheduler"):
            group.create_task(_tick(target))


async def _tick(target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        stub: Any = SchedulerServiceStub(channel)
        for _ in range(20):
            with suppress(grpc.RpcError):
                await stub.Tick(scheduler_service_pb2.TickRequest(), timeout=10)


def drop_unique_index(rig: Rig) -> None:
    _on_shards(rig, "DROP INDEX IF EXISTS jobs_nominal")


def make_unique_index(rig: Rig) -> None:
    _on_shards(
        rig,
        "CREATE UNIQUE INDEX IF NOT EXISTS jobs_nominal ON jobs (schedule_id, nominal_time)"
        " WHERE schedule_id IS NOT NULL",
    )


def _on_shards(rig: Rig, statement: str) -> None:
    for dsn in rig.mesh.shard_dsns.values():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.encode())


@dataclass(frozen=True, slots=True)
class Trial:
    """One mutant. `faults` also hit the control."""

    number: str
    about: str
    expects: frozenset[str]
    mutant: str = ""
    services: tuple[str, ...] = ()
    faults: Faults = nothing
    mix: Mix = field(default_factory=lambda: QUICK)
    before: Callable[[Rig], None] | None = None
    after: Callable[[Rig], None] | None = None
    overlaps: bool = False


def _rules(*numbers: str) -> frozenset[str]:
    return frozenset(numbers)


#: M12 is looked at by itself: on one kernel nothing is ever lost by it (`__main__`).
TRIALS = (
    Trial(
        "M1",
        "no fence in Complete",
        _rules("I6", "I7", "I8"),
        "no_fence",
        ("orchestrator",),
        freeze_a_worker,
        STEADY,
    ),
    Trial("M2", "publish before commit", _rules("I15"), "publish_before_commit", ("scheduler",)),
    Trial("M3", "no sweeper", _rules("I22"), "no_sweeper", ("scheduler",), lose_a_dispatch),
    Trial(
        "M4",
        "attempt counted at end",
        _rules("I12"),
        "counted_at_end",
        ("scheduler", "orchestrator"),
    ),
    Trial(
        "M5",
        "output key without fence",
        _rules("I8"),
        "output_without_fence",
        ("worker",),
        mix={"large": 4, "plain": 2},
    ),
    Trial(
        "M6",
        "no UNIQUE(schedule, nominal time)",
        _rules("I13"),
        mutant="no_unique",
        services=("scheduler",),
        faults=fire_twice_at_once,
        before=drop_unique_index,
        after=make_unique_index,
    ),
    Trial(
        "M7",
        "BIGSERIAL watch cursor",
        _rules("I16"),
        "no_horizon",
        ("orchestrator",),
        hold_transactions_open,
    ),
    Trial(
        "M8",
        "cancel as blind UPDATE",
        _rules("I3", "I4", "I11"),
        "blind_cancel",
        ("orchestrator",),
        mix={"cancelled": 8, "plain": 2},
    ),
    Trial(
        "M9",
        "redirect on unknown",
        _rules("I1"),
        "redirect_on_unknown",
        ("orchestrator",),
        lose_answers_of_shards,
    ),
    Trial(
        "M10",
        "wall clock in claim",
        _rules("I10"),
        "wall_clock",
        ("scheduler",),
        mix={"later": 6, "plain": 2},
    ),
    Trial(
        "M11", "COMMIT again on a new connection", _rules("I1"), "commit_again", ("orchestrator",)
    ),
    Trial(
        "M13",
        "resume token off by one",
        _rules("I16"),
        "token_off_by_one",
        ("enqueue",),
        kill_enqueue,
        {"long": 1},
    ),
    Trial(
        "M14", "rescue by age only", _rules("I22", "I12"), "rescue_by_age", ("scheduler",), mix=LONG
    ),
    Trial("M15", "purge without looking again", _rules("I1"), "careless_purge", ("scheduler",)),
    Trial("M16", "event outside the transaction", _rules("I4"), "events_apart", ("orchestrator",)),
    Trial(
        "M17",
        "children due when they are stored",
        _rules("I31"),
        "released_at_once",
        ("orchestrator",),
        mix={"tree": 2, "steps": 2},
    ),
    Trial("M18", "no limits", _rules("I14"), "no_limits", ("scheduler",), mix={"limited": 1}),
    Trial(
        "M19",
        "update without labels",
        _rules("I33"),
        "forgetful_update",
        ("orchestrator",),
        mix={"updated": 1},
    ),
    Trial(
        "M20",
        "redrive beside a live one",
        _rules("I32"),
        "redriven_beside",
        ("orchestrator",),
        mix={"redriven": 1, "revived": 1},
    ),
    Trial("M21", "snooze without pause", _rules("I34"), "no_pause", ("orchestrator",), mix=SNOOZE),
    Trial("M22", "inputs mixed up", _rules("I8"), "mixed_inputs", ("worker",)),
    Trial(
        "M23",
        "any content under a known key",
        _rules("I2"),
        "any_content",
        ("orchestrator",),
        mix={"conflict": 1},
    ),
    Trial(
        "M24",
        "a unique key for all",
        _rules("I14"),
        "key_for_all",
        ("orchestrator",),
        mix=RIVALS,
    ),
    Trial(
        "M25",
        "redrive without its unique key",
        _rules("I14"),
        "repeated_without_key",
        ("orchestrator",),
        mix=RIVALS,
    ),
    Trial(
        "M26",
        "limits of keys only",
        _rules("I14"),
        "limits_of_keys_only",
        ("scheduler",),
        mix={"lane": 1},
    ),
    Trial(
        "M27",
        "redrive by filter, again and again",
        _rules("I32"),
        "all_over_again",
        ("orchestrator",),
        mix={"bulk": 1},
    ),
    Trial(
        "M28",
        "overlap without a look at its runs",
        _rules("I14"),
        "never_busy",
        ("scheduler",),
        overlaps=True,
    ),
    Trial(
        "M29",
        "put again after it has replaced",
        _rules("I14"),
        "put_after_replacing",
        ("orchestrator",),
        mix=RIVALS,
    ),
)
