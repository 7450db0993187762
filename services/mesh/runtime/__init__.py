"""How a process of the mesh lives: start, serve, drain, end. Plain asyncio; knows no gRPC.

Parts
    Component     `start` / `stop`; a Taker can also `stop_taking`, a Finisher `finish(timeout)`.
    Loop          a Component around `run_once`, with an interval, nudges and backoff.
    until_beat    how long to rest so that a process wakes up once for all who do.
    Tasks         owns background tasks; when one dies the process drains.
    Overdue       finds what takes longer than it may, with one timer for all.
    in_own_thread what would block the loop, in threads that no code of users can take up.
    together      several things at once; a lone one costs no task.
    Readiness     which dependencies are up; the health service shows it.
    DrainSignal   what long streams await, so that they end politely.
    Process       holds these and the components, and runs them in order.
    run_service   the whole story from argv to exit code.

States of a process

    starting ──▶ serving ──▶ draining ──▶ stopped
        │                        ▲
        └── SIGTERM, or an error ┘

    The first SIGTERM or SIGINT drains, the second one stops waiting. Exit codes: 0 after a drain, 1
    if the start failed or a task died, 2 for bad configuration, 128 + signal if the drain was cut
    short. The order of the drain is written down where it happens: `Process._wind_down`. Threads
    and tasks that do not end, as handlers may leave them, are left behind soon after.

The deadline of the call being served is in `deadline`; it bounds calls and statements made for it.
"""

from services.mesh.runtime import deadline
from services.mesh.runtime.backoff import Backoff
from services.mesh.runtime.beat import until_beat
from services.mesh.runtime.component import Component, Finisher, Hooks, StartupError, Taker
from services.mesh.runtime.drain import DrainSignal
from services.mesh.runtime.loop import Counts, Loop
from services.mesh.runtime.overdue import Overdue
from services.mesh.runtime.process import Process
from services.mesh.runtime.readiness import Dependency, Readiness
from services.mesh.runtime.service import run_service
from services.mesh.runtime.tally import Tally
from services.mesh.runtime.tasks import Tasks, together
from services.mesh.runtime.threads import in_own_thread

__all__ = [
    "Backoff",
    "Component",
    "Counts",
    "Dependency",
    "DrainSignal",
    "Finisher",
    "Hooks",
    "Loop",
    "Overdue",
    "Process",
    "Readiness",
    "StartupError",
    "Taker",
    "Tally",
    "Tasks",
    "deadline",
    "in_own_thread",
    "run_service",
    "together",
    "until_beat",
]
