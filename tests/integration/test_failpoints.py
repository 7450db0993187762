"""Failpoints of a real process: served only when asked for, and they do what they say."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from jobmesh.v1 import failpoint_service_pb2 as pb
from jobmesh.v1 import scheduler_service_pb2
from jobmesh.v1.failpoint_service_pb2_grpc import FailpointServiceStub
from jobmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from services.mesh.config import ConfigError, ServiceConfig, parse
from services.mesh.errors import InvalidArgument, MeshError
from services.mesh.rpc import open_channel
from tests.integration.test_chassis_process import started

PAUSE_SECONDS = 0.6


async def tick(channel: Any, timeout: float = 20) -> None:
    await SchedulerServiceStub(channel).Tick(scheduler_service_pb2.TickRequest(), timeout=timeout)


async def arm(channel: Any, order: str, name: str = "sample.tick.begins") -> None:
    await FailpointServiceStub(channel).Arm(pb.ArmRequest(name=name, order=order))


async def test_a_process_without_the_flag_serves_no_failpoints() -> None:
    async with started() as process:
        address = (await process.until("serving"))["address"]
        async with open_channel(address, peer="sample") as channel:
            await tick(channel)
            with pytest.raises(MeshError) as refused:
                await arm(channel, "kill")
            assert refused.value.code.name == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    "given", [{"JOBMESH_FAILPOINTS": "sample.tick.begins=kill"}, {"JOBMESH_MUTANT": "m:deaf"}]
)
def test_orders_and_mutants_without_the_flag_are_bad_configuration(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="failpoints_enabled"):
        parse(ServiceConfig, [], given)


async def test_an_order_that_nobody_understands_is_bad_configuration() -> None:
    for orders in ("sample.tick.begins=explode", "sample.nowhere=kill"):
        flags = ("--failpoints-enabled", f"--failpoints={orders}")
        async with started(*flags) as process:
            assert await process.exit_code() == 2
            assert "sample" in process.lines[-1]["message"] or "order" in str(process.lines[-1])


async def test_places_are_listed_armed_and_disarmed_over_grpc() -> None:
    async with started("--failpoints-enabled") as process:
        address = (await process.until("serving"))["address"]
        async with open_channel(address, peer="sample") as channel:
            stub = FailpointServiceStub(channel)
            await tick(channel)
            await arm(channel, "raise@2")
            (point,) = (await stub.List(pb.FailpointServiceListRequest())).failpoints
            assert (point.name, point.order, point.hits) == ("sample.tick.begins", "raise@2", 1)
            assert (await stub.Disarm(pb.DisarmRequest())).was_armed
            for bad in (("explode", "sample.tick.begins"), ("kill", "sample.nowhere")):
                with pytest.raises(InvalidArgument):
                    await arm(channel, *bad)


async def test_a_killed_process_dies_at_the_place_and_leaves_a_line(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    flags = ("--failpoints-enabled", "--failpoints=sample.tick.begins=kill@2,other.place=kill")
    async with started(*flags, f"--failpoints-journal={journal}") as process:
        address = (await process.until("serving"))["address"]
        async with open_channel(address, peer="sample") as channel:
            await tick(channel)
            with pytest.raises(MeshError):
                await tick(channel)
        assert await process.exit_code() == -signal.SIGKILL
    (line,) = [json.loads(text) for text in journal.read_text().splitlines()]
    assert (line["name"], line["order"]) == ("sample.tick.begins", "kill@2")


async def test_a_paused_process_stands_still_as_a_whole_and_goes_on() -> None:
    async with started("--failpoints-enabled") as process:
        address = (await process.until("serving"))["address"]
        async with open_channel(address, peer="sample") as channel:
            await arm(channel, f"pause:{PAUSE_SECONDS}s")
            began = time.monotonic()
            await tick(channel)
            assert time.monotonic() - began >= PAUSE_SECONDS


async def test_a_mutant_is_made_before_the_service_is_built() -> None:
    mutant = "tests.integration.chassis_service:deaf"
    async with started("--failpoints-enabled", f"--mutant={mutant}") as process:
        await process.until("mutant")
        address = (await process.until("serving"))["address"]
        async with open_channel(address, peer="sample") as channel:
            with pytest.raises(MeshError):
                await tick(channel)
