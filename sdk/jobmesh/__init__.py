"""jobmesh: what a user imports.

    from jobmesh import Client, Context, job

    @job("resize", retries=3)
    def resize(image: Resize, ctx: Context) -> str: ...

    with Client() as client:
        print(client.enqueue(resize, Resize("cat.png")).result(timeout=30))

Importing this package is cheap: what talks to the mesh (gRPC) is loaded when a client is first
asked for. `__all__` is the public surface, held by a contract test.
"""

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# The generated contracts live in the same package (`jobmesh.v1`) but in another folder (gen/), so
# the package's path is extended over every root that has a piece of it.
__path__ = extend_path(__path__, __name__)

from jobmesh.context import Context
from jobmesh.errors import (
    AttemptCancelled,
    CallError,
    HandlerError,
    InputError,
    JobFailed,
    JobmeshError,
    OutputError,
    PermanentFailure,
    RetryAfter,
    Snooze,
    WaitTimeout,
)
from jobmesh.handlers import (
    App,
    Command,
    HandlerSpec,
    JobFunction,
    job,
    load_commands,
    load_handlers,
)
from jobmesh.invocation import Output, invoke, invoke_async

if TYPE_CHECKING:
    from jobmesh.client import Ack, AsyncClient, AsyncJobHandle, Client, JobHandle
    from jobmesh.model import Job, JobEvent, JobState, Schedule
    from jobmesh.options import NewJob
    from jobmesh.retry import Retry
    from jobmesh.ties import After, Unique

__all__ = [
    "Ack",
    "After",
    "App",
    "AsyncClient",
    "AsyncJobHandle",
    "AttemptCancelled",
    "CallError",
    "Client",
    "Command",
    "Context",
    "HandlerError",
    "HandlerSpec",
    "InputError",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobState",
    "JobmeshError",
    "NewJob",
    "Output",
    "OutputError",
    "PermanentFailure",
    "Retry",
    "RetryAfter",
    "Schedule",
    "Snooze",
    "Unique",
    "WaitTimeout",
    "invoke",
    "invoke_async",
    "job",
    "load_commands",
    "load_handlers",
]

_LAZY = {
    "jobmesh.client": ("Ack", "AsyncClient", "AsyncJobHandle", "Client", "JobHandle"),
    "jobmesh.model": ("Job", "JobEvent", "JobState", "Schedule"),
    "jobmesh.options": ("NewJob",),
    "jobmesh.retry": ("Retry",),
    "jobmesh.ties": ("After", "Unique"),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
