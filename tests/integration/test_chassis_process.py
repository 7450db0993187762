"""A process of the mesh as its operator meets it: start lines, signals, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from jobmesh.v1 import scheduler_service_pb2 as pb
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from services.mesh.errors import NotImplementedYet
from services.mesh.rpc import open_channel

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("chassis_service.py")


class Running:
    """A started process and the log lines it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []

    async def until(self, action: str) -> dict[str, Any]:
        """The first log line with that action; everything before it is kept."""
        assert self._process.stderr is not None
        async with asyncio.timeout(20):
            async for raw in self._process.stderr:
                self.lines.append(json.loads(raw))
                if self.lines[-1].get("action") == action:
                    return self.lines[-1]
        raise AssertionError(f"ended without {action}: {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(20):
            _, rest = await self._process.communicate()
        self.lines += [json.loads(line) for line in rest.splitlines()]
        assert self._process.returncode is not None
        return self._process.returncode


def environment(**variables: str) -> dict[str, str]:
    roots = os.pathsep.join(str(ROOT / part) for part in (".", "gen", "sdk"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JOBMESH_")}
    return {**kept, "PYTHONPATH": roots, "GRPC_VERBOSITY": "ERROR", **variables}


@asynccontextmanager
async def started(*flags: str, **variables: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), "--log-format=json", *flags),
        env=environment(**variables),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def fetched(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def free_address() -> str:
    """An address nobody listens on now."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"127.0.0.1:{port}"


async def test_process_says_where_it_serves_and_answers_there() -> None:
    metrics = await free_address()
    async with started(JOBMESH_METRICS_LISTEN=metrics, JOBMESH_INSTANCE="s-1") as process:
        line = await process.until("serving")
        assert (line["service"], line["instance"]) == ("sample", "s-1")
        await process.until("started")
        async with open_channel(line["address"], peer="sample") as channel:
            stub = SchedulerServiceStub(channel)
            await stub.Tick(pb.TickRequest())
            with pytest.raises(NotImplementedYet):
                await stub.Describe(pb.SchedulerServiceDescribeRequest())
        assert "jobmesh_build_info" in await fetched(metrics, "/metrics")
        assert '"ready": true' in await fetched(metrics, "/readyz")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    assert process.lines[-1]["action"] == "stopped"


async def test_address_in_use_is_told_in_one_line() -> None:
    async with started() as first:
        address = (await first.until("serving"))["address"]
        async with started("--listen", address) as second:
            assert await second.exit_code() == 1
        (told,) = [line for line in second.lines if line["level"] == "error"]
        assert f"cannot listen on {address}" in told["message"]
        assert "exception" not in told


async def test_stubborn_work_is_left_at_the_deadline() -> None:
    async with started("--stubborn", "--drain-seconds=50ms") as process:
        await process.until("started")
        process.signal(signal.SIGTERM)
        await process.until("drain_incomplete")
        assert await process.exit_code() == 0


async def test_second_signal_ends_a_long_drain() -> None:
    async with started("--stubborn", "--drain-seconds=1h") as process:
        await process.until("started")
        process.signal(signal.SIGINT)
        await process.until("stop_requested")
        process.signal(signal.SIGINT)
        assert await process.exit_code() == 128 + signal.SIGINT


async def test_process_that_loses_a_task_drains_and_exits_with_1() -> None:
    async with started("--dying") as process:
        failed = await process.until("task_failed")
        assert failed["task"] == "keeper"
        assert await process.exit_code() == 1
    assert process.lines[-1]["action"] == "stopped"


@pytest.mark.parametrize("what", ["thread", "task"])
async def test_what_is_left_behind_does_not_keep_the_process(what: str) -> None:
    async with started(f"--leftover={what}") as process:
        await process.until("started")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    told = [line.get("action") for line in process.lines]
    assert told[-2:] == ["stopped", "left_behind"]
    assert "stop_failed" not in told


async def test_what_is_left_behind_does_not_change_the_exit_code() -> None:
    async with started("--leftover=thread", "--dying") as process:
        assert await process.exit_code() == 1


async def test_bad_configuration_exits_with_2_before_anything_starts() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), "--drain-seconds=soon", "--listn=x"),
        env=environment(JOBMESH_LOG_LEVEL="loud"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    assert process.returncode == 2
    lines = told.decode().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("jobmesh-sample: ") for line in lines)


async def test_traced_process_writes_its_spans_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    parent = "00-" + "c" * 32 + "-" + "d" * 16 + "-01"
    async with started(JOBMESH_TRACE_FILE=str(file)) as process:
        address = (await process.until("serving"))["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            stub = SchedulerServiceStub(channel)
            await stub.Tick(pb.TickRequest(), metadata=(("traceparent", parent),))
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    (span,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (span["trace_id"], span["parent_span_id"]) == ("c" * 32, "d" * 16)
    assert span["name"] == "jobmesh.v1.SchedulerService/Tick"
