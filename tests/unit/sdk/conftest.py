"""A mesh in memory behind a real gRPC server, clients of it, and the command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from jobmesh import AsyncClient
from jobmesh.cli import connect
from jobmesh.cli.app import app
from typer.testing import CliRunner

from tests.unit.sdk.cli_runs import Ran, Run
from tests.unit.sdk.memory_mesh import MemoryMesh, serve


@pytest.fixture
async def mesh() -> MemoryMesh:
    return MemoryMesh()  # type: ignore[abstract]


@pytest.fixture
async def address(mesh: MemoryMesh) -> AsyncIterator[str]:
    server, address = await serve(mesh)
    yield address
    await server.stop(None)


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address) as client:
        yield client


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in a thread, beside the loop that serves it."""
    for variable, _ in connect.DEFAULTS.values():
        monkeypatch.setenv(variable, address)

    async def invoke(*arguments: str, stdin: str | None = None) -> Ran:
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke
