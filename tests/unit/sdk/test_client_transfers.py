"""Inputs and outputs that are files, or too large for a message."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest
from jobmesh import (
    AsyncClient,
    InputError,
    NewJob,
)
from jobmesh.errors import (
    CallError,
)

from tests.unit.sdk.memory_mesh import Fault, MemoryMesh, succeed


async def test_large_inputs_and_files_are_uploaded(
    client: AsyncClient, mesh: MemoryMesh, tmp_path: Path
) -> None:
    large = bytes(range(256)) * 5000
    await client.enqueue("echo", large)
    await client.enqueue("echo", large[: 1024 * 1024])
    file = tmp_path / "small.txt"
    file.write_text("hello")
    await client.enqueue("echo", file)
    by_value, inline, by_file = (call.job.input for call in mesh.calls["Enqueue"])
    assert mesh.objects[by_value.object.key] == large
    assert inline.HasField("data")
    assert mesh.objects[by_file.object.key] == b"hello"
    assert by_file.content_type == "text/plain"


async def test_a_file_that_is_not_there_is_an_input_error(client: AsyncClient) -> None:
    with pytest.raises(InputError, match="input: no-such-file is not a file"):
        await client.enqueue("echo", Path("no-such-file"))


async def test_a_file_that_cannot_be_read_is_an_input_error_not_a_cancellation(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    unreadable = Path("/proc/self/mem")  # it opens, and fails at the first byte, even for root
    with pytest.raises(InputError, match="cannot read the file /proc/self/mem: Input/output"):
        await client.enqueue("echo", unreadable)
    bad, good = await client.enqueue_many(
        [NewJob("echo", unreadable), NewJob("echo")], raise_errors=False
    )
    assert isinstance(bad.error, InputError)
    assert good.ok


async def test_a_broken_download_starts_over(
    client: AsyncClient, mesh: MemoryMesh, tmp_path: Path
) -> None:
    mesh.on_stored = succeed
    data = b"0123456789" * 200_000
    handle = await client.enqueue("echo", data)
    mesh.faults["DownloadOutput"] = [Fault(grpc.StatusCode.UNAVAILABLE, after=True)]
    await handle.download(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == data
    assert await handle.result(timeout=5) == data
    assert os.listdir(tmp_path) == ["out"]


async def test_a_download_leaves_pipes_links_and_other_files_as_they_are(
    client: AsyncClient, mesh: MemoryMesh, tmp_path: Path
) -> None:
    mesh.on_stored = succeed
    handle = await client.enqueue("echo", b"content")
    pipe, link, real = (tmp_path / name for name in ("pipe", "link", "real"))
    os.mkfifo(pipe)
    reading = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    await handle.download(pipe)
    assert (await reading, pipe.is_fifo()) == (b"content", True)
    link.symlink_to(real)
    (tmp_path / "link.part").write_text("somebody's own")
    await handle.download(link)
    assert (real.read_bytes(), link.is_symlink()) == (b"content", True)
    assert sorted(os.listdir(tmp_path)) == ["link", "link.part", "pipe", "real"]


async def test_a_corrupt_output_is_not_passed_on(
    client: AsyncClient, mesh: MemoryMesh, tmp_path: Path
) -> None:
    mesh.on_stored = succeed
    handle = await client.enqueue("echo", b"x" * 2_000_000)
    key = mesh.records[handle.id].job.output.object.key
    mesh.objects[key] = b"y" * 2_000_000
    with pytest.raises(CallError, match="OBJECT_CORRUPT"):
        await handle.download(tmp_path / "out")
    assert not os.listdir(tmp_path)
