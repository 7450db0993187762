"""Server reflection under both of its names, so that grpcurl, buf curl and Postman need no protos.

grpcio-reflection serves `grpc.reflection.v1alpha` only. `v1` has the same messages on the wire, so
the same servicer answers under that name too. Its description is made from the older one's: who
lists methods asks for every service it was told of, and gives up at one without a description.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.json_format import MessageToJson, Parse
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as reflection

from services.mesh.rpc.interceptors.writing import writes
from services.mesh.runtime import DrainSignal

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def reflection_handlers(services: Iterable[str], drain: DrainSignal) -> dict[str, Any]:
    """What describes the given services, by path; streams end when the process drains."""
    _describe_v1()
    servicer: Any = reflection.ReflectionServicer([*services, *SERVICES])

    async def info(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for response in servicer.ServerReflectionInfo(drain.cut(requests), context):
            yield response

    handler = grpc.stream_stream_rpc_method_handler(
        writes(info),
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return {f"/{name}/ServerReflectionInfo": handler for name in SERVICES}


def _describe_v1() -> None:
    """Teach the process's descriptors the newer name; again, it changes nothing."""
    old = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(old)
    renamed = MessageToJson(old).replace("reflection.v1alpha", "reflection.v1")
    new = Parse(renamed.replace("v1alpha/", "v1/"), descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(new.SerializeToString())
