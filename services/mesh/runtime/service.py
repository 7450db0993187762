"""The story of a process, from its arguments to its exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from services.mesh.config import ServiceConfig, load
from services.mesh.errors import InvalidField
from services.mesh.runtime.allocator import tell_allocator
from services.mesh.runtime.component import Hooks
from services.mesh.runtime.lag import LagWatch
from services.mesh.runtime.process import Process
from services.mesh.runtime.slack import inherited_slack
from services.mesh.telemetry import logs, tracing
from services.mesh.telemetry.http import MetricsEndpoint

if TYPE_CHECKING:
    from services.mesh.failpoints import Failpoints

C = TypeVar("C", bound=ServiceConfig)
Build = Callable[[C, Process], Awaitable[None]]
log = logging.getLogger(__name__)

#: How long the end of a process waits for threads and tasks that nobody owns.
LEAVE_SECONDS = 2.0


def run_service(
    name: str,
    config_class: type[C],
    build: Build[C],
    *,
    failpoints: str = "",
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Be the service `name` until told to stop; returns the exit code.

    `build` is the composition root: it makes the adapters, the use cases, the servicer and the
    server, and adds them to the process in the order they should start, the server last.
    `failpoints` is the module that lists the service's failpoints; it is loaded only if the
    configuration says so.
    """
    tell_allocator()
    config = load(
        config_class,
        sys.argv[1:] if argv is None else argv,
        os.environ if environ is None else environ,
        program=f"jobmesh-{name}",
    )
    logs.configure(name, config.instance, format=config.log_format, level=config.log_level)
    try:
        struck = _failpoints(name, config, failpoints)
    except InvalidField as error:
        log.error("failpoints: %s", error, extra={"action": "start_failed"})
        return 2
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        exit_code = runner.run(_live(name, config, build, struck))
        _leave_soon(exit_code)
        return exit_code


def _leave_soon(exit_code: int) -> None:
    """See that nothing keeps the process now: all is committed, stopped and flushed.

    The loop waits for its threads and tasks, and the interpreter for all threads: for ever, if one
    of a handler hangs or ignores its cancellation.
    """
    leaving = threading.Timer(LEAVE_SECONDS, _leave, (exit_code,))
    leaving.daemon = True
    leaving.start()
    sys.stdout.flush()


def _leave(exit_code: int) -> None:
    threads = [one.name for one in threading.enumerate() if not one.daemon]
    extra = {"action": "left_behind", "threads": threads}
    log.warning("something does not end: leaving it behind", extra=extra)
    os._exit(exit_code)


def _failpoints(name: str, config: ServiceConfig, module: str) -> Failpoints | None:
    """The failpoints of a process that may have some. Others never load what makes them."""
    if not config.failpoints_enabled or not module:
        return None
    from services.mesh.failpoints.opening import open_failpoints, turn_into

    if config.mutant is not None:
        turn_into(config.mutant)
    orders, journal = config.failpoints, config.failpoints_journal
    return open_failpoints(name, config.instance, module, orders, journal)


async def _live(name: str, config: C, build: Build[C], failpoints: Failpoints | None) -> int:
    process = Process(
        name,
        config.instance,
        drain_seconds=config.drain_seconds,
        tracing=tracing.configure(
            name,
            config.instance,
            endpoint=config.otlp_endpoint,
            file=config.trace_file,
            ratio=config.trace_ratio,
        ),
        failpoints=failpoints,
    )

    async def assemble() -> None:
        _add_watchers(process, config)
        with inherited_slack():  # for the threads of gRPC, which begin with its first channel
            await build(config, process)
        process.add(Hooks("memory", start=settle_memory))

    return await process.run(assemble)


def _add_watchers(process: Process, config: ServiceConfig) -> None:
    """What looks at the process from outside starts first and stops last."""
    process.add(LagWatch(process.metrics))
    if config.metrics_listen is not None:
        readiness = process.readiness
        process.add(
            MetricsEndpoint(
                config.metrics_listen,
                process.metrics,
                alive=lambda: readiness.alive,
                missing=readiness.missing,
            )
        )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (10 to 40 % less CPU on our paths), asyncio's own otherwise."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop  # type: ignore[no-any-return, unused-ignore]


async def settle_memory() -> None:
    """Keep what start-up made out of later garbage collections, and have fewer of them.

    Modules, descriptors and pools live as long as the process; walking them again and again only
    stalls the event loop.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
