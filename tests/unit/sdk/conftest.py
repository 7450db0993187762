"""A mesh in memory behind a real gRPC server, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from jobmesh import AsyncClient

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
