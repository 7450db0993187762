"""Health and reflection as any gRPC tool sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tests.integration.chassis_mesh import Mesh, mesh

SERVICE = "jobmesh.v1.EnqueueService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def status(m: Mesh, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(m.bare)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(response.status)


async def test_process_is_alive_before_it_is_ready() -> None:
    async with mesh() as m:
        postgres = m.process.readiness.require("postgres")
        assert await status(m, "") == SERVING
        assert await status(m, SERVICE) == NOT_SERVING
        postgres.up()
        assert await status(m, SERVICE) == SERVING
        postgres.down("gone")
        assert await status(m, SERVICE) == NOT_SERVING
        assert await status(m, "") == SERVING


async def test_draining_process_is_not_serving_at_all() -> None:
    async with mesh() as m:
        m.process.readiness.drain()
        assert await status(m, "") == NOT_SERVING
        assert await status(m, SERVICE) == NOT_SERVING


async def test_service_that_is_not_here_is_not_found() -> None:
    async with mesh() as m:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status(m, "jobmesh.v1.OtherService")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_follows_readiness_and_ends_with_the_drain() -> None:
    async with mesh() as m:
        nats = m.process.readiness.require("nats")
        stub: Any = health_pb2_grpc.HealthStub(m.bare)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == NOT_SERVING
        nats.up()
        assert (await watch.read()).status == SERVING
        m.process.readiness.drain()
        assert (await watch.read()).status == NOT_SERVING
        m.process.drain.set()
        assert await watch.read() is grpc.aio.EOF
        await asyncio.wait_for(m.server.finish(10.0), timeout=5.0)


async def reflected(m: Mesh, version: str, **request: Any) -> Any:
    call: Any = m.bare.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    stream = call(iter([reflection_pb2.ServerReflectionRequest(**request)]))
    return await stream.read()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_and_describes_the_services(version: str) -> None:
    async with mesh() as m:
        listed = await reflected(m, version, list_services="")
        names = {service.name for service in listed.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"} <= names
        found = await reflected(m, version, file_containing_symbol=SERVICE)
        assert found.file_descriptor_response.file_descriptor_proto


async def test_reflection_can_be_turned_off() -> None:
    async with mesh(reflection=False) as m:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reflected(m, "v1", list_services="")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_open_reflection_stream_does_not_hold_the_stop() -> None:
    async with mesh() as m:
        call: Any = m.bare.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        )
        stream = call()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await stream.read()
        m.process.drain.set()
        await asyncio.wait_for(m.server.finish(10.0), timeout=5.0)
