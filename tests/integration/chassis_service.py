"""A whole process on the chassis, for tests that start it, signal it and look at how it ends.

`--stubborn` makes its one job ignore the drain; `--dying` makes a background task fail;
`--leftover` leaves a thread that hangs, or a task that ignores its cancellation.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobmesh.v1 import scheduler_service_pb2 as pb
from jobmesh.v1.scheduler_service_pb2_grpc import (
    SchedulerServiceServicer,
    add_SchedulerServiceServicer_to_server,
)

from services.mesh.config import ServiceConfig, setting
from services.mesh.failpoints import Place, When
from services.mesh.rpc import Server
from services.mesh.runtime import Process, run_service


@dataclass(frozen=True, kw_only=True)
class SampleConfig(ServiceConfig):
    """The common settings, and ways to misbehave."""

    stubborn: bool = setting(False, "Work that never finishes.")
    dying: bool = setting(False, "A background task that fails once everything serves.")
    leftover: str = setting("", "What does not end: a thread, or a task.")


class Ticker(SchedulerServiceServicer):
    """Answers Tick, and nothing else."""

    async def Tick(self, request: Any, context: Any) -> Any:
        return pb.TickResponse()


class Work:
    """A component with work that ends at once, or never."""

    def __init__(self, stubborn: bool) -> None:
        self.name = "work"
        self._stubborn = stubborn

    async def start(self) -> None: ...

    async def finish(self, timeout: float) -> None:
        if self._stubborn:
            await asyncio.Event().wait()

    async def stop(self) -> None: ...


async def die(process: Process) -> None:
    await process.serving()
    raise OSError("the keeper fell")


def hang() -> None:
    """All threads of the loop hang from now on, as handlers may leave them."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    loop.run_in_executor(None, threading.Event().wait)


async def ignore_cancellation() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def build(config: SampleConfig, process: Process) -> None:
    process.add(Work(config.stubborn))
    server = Server.from_config(process, config)
    server.add(add_SchedulerServiceServicer_to_server, Ticker())  # type: ignore[abstract]
    process.add(server)
    if config.dying:
        process.tasks.spawn(die(process), "keeper")
    if config.leftover == "thread":
        hang()
    elif config.leftover == "task":
        LEFT.append(asyncio.create_task(ignore_cancellation(), name="leftover"))


def deaf() -> None:
    """A mutant: Tick fails."""

    async def refuse(self: Ticker, request: Any, context: Any) -> Any:
        raise RuntimeError("deaf")

    Ticker.Tick = refuse  # type: ignore[method-assign]


LEFT: list[asyncio.Task[None]] = []
PLACES = (Place("sample.tick.begins", "asked to tick", Ticker, "Tick", When.BEFORE),)

if __name__ == "__main__":
    # Under its real name: what a failpoint or a mutant changes must be what is run.
    from tests.integration import chassis_service as own

    sys.exit(run_service("sample", own.SampleConfig, own.build, failpoints=own.__name__))
