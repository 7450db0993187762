"""Which addresses a command talks to.

What was said explicitly wins (a flag, JOBMESH_ADDRESS), then the mesh that `jobmesh up` made in
this folder (it may have ports of its own), then the default ports on this machine.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jobmesh.cli.failures import CommandError, exit_code
from jobmesh.errors import CallError, Unavailable

if TYPE_CHECKING:
    from jobmesh.client import AsyncClient
    from jobmesh.client.caller import Caller
    from jobmesh.client.operators import Pools

T = TypeVar("T")

DEFAULTS = {
    "enqueue": ("JOBMESH_ADDRESS", "127.0.0.1:7101"),
    "orchestrator": ("JOBMESH_ORCHESTRATOR_ADDRESS", "127.0.0.1:7102"),
    "scheduler": ("JOBMESH_SCHEDULER_ADDRESS", "127.0.0.1:7103"),
    "scaler": ("JOBMESH_SCALER_ADDRESS", "127.0.0.1:7105"),
}
#: Commands are run by people: they would rather hear soon that nobody is there.
ATTEMPTS = 4


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's coroutine. Imported here: asyncio is a fifth of the time of `--help`."""
    import asyncio

    return asyncio.run(work)


def home_folder(given: Path | None = None) -> Path:
    """The folder of the local mesh: the flag, JOBMESH_HOME, or .jobmesh right here."""
    return (given or Path(os.environ.get("JOBMESH_HOME") or ".jobmesh")).absolute()


def address_of(service: str, given: str | None = None) -> str:
    """host:port of a service."""
    return addresses_of(service, given)[0]


def addresses_of(service: str, given: str | None = None) -> list[str]:
    """host:port of every replica of a service that we know of."""
    variable, default = DEFAULTS[service]
    if said := given or os.environ.get(variable):
        return [said]
    return _local_addresses(service) or [default]


def folder_for_workers(address: str | None) -> str:
    """Where workers find the module that lies here; elsewhere nobody knows this folder."""
    host = address_of("scaler", address).rpartition(":")[0]
    return str(Path.cwd()) if host in ("127.0.0.1", "localhost", "[::1]") else ""


def _local_addresses(service: str) -> list[str]:
    home = home_folder()
    if not (home / "state.json").exists():
        return []
    try:
        from localmesh.mesh import LocalMesh
    except ImportError:  # the local stack is an extra
        return []
    return LocalMesh.saved(home).plan.targets(service)


def client(address: str | None, namespace: str) -> AsyncClient:
    from jobmesh.client import AsyncClient

    return AsyncClient(address_of("enqueue", address), namespace=namespace, attempts=ATTEMPTS)


@asynccontextmanager
async def near_types_named(client: AsyncClient, type: str) -> AsyncIterator[None]:
    """If the mesh does not know the type, but one that is nearly called so, the error says it."""
    try:
        yield
    except CallError as error:
        if error.reason != "UNKNOWN_TYPE":
            raise
        from difflib import get_close_matches

        near = get_close_matches(type, await client.types(), n=1)
        if not near:
            raise
        message = f"{error.message} ({error.reason})"
        hint = f"did you mean {near[0]}? jobmesh type list"
        raise CommandError(message, hint, exit_code(error)) from None


def caller(service: str, address: str | None) -> Caller:
    from jobmesh.client.caller import Caller

    variable, _ = DEFAULTS[service]
    where = address_of(service, address)
    return Caller(where, attempts=ATTEMPTS, service=service, variable=variable)


async def ask_any(service: str, address: str | None, ask: Callable[[Caller], Awaitable[T]]) -> T:
    """The answer of the first replica that is there; for what any of them can do."""
    *others, last = addresses_of(service, address)
    for where in others:
        try:
            return await ask(caller(service, where))
        except Unavailable as error:
            if error.reason != "UNREACHABLE":
                raise
    return await ask(caller(service, last))


def pools(address: str | None) -> Pools:
    from jobmesh.client.operators import Pools

    return Pools(caller("scaler", address))
