"""Payloads. Which store an object is in follows from its role: the wire carries only its key."""

from __future__ import annotations

from jobmesh.v1 import payload_pb2

from services.mesh.jobs.model import NO_PAYLOAD, ObjectRef, Payload


def payload_to_proto(payload: Payload, *, data: bool = True) -> payload_pb2.Payload | None:
    """None for an empty payload; without `data` the bytes are left out."""
    kind = payload.content_type
    if payload.ref is not None:
        return payload_pb2.Payload(object=object_to_proto(payload.ref), content_type=kind)
    if payload.data is None and not kind:
        return None
    message = payload_pb2.Payload(content_type=kind)
    if data and payload.data is not None:
        message.data = payload.data
    return message


def payload_from_proto(message: payload_pb2.Payload) -> Payload:
    kind = message.WhichOneof("content")
    if kind == "object":
        return Payload.stored(object_from_proto(message.object), message.content_type)
    if kind == "data":
        return Payload.inline(message.data, message.content_type)
    return Payload(message.content_type) if message.content_type else NO_PAYLOAD


def object_to_proto(ref: ObjectRef) -> payload_pb2.ObjectRef:
    return payload_pb2.ObjectRef(key=ref.key, size_bytes=ref.size, sha256=ref.sha256)


def object_from_proto(message: payload_pb2.ObjectRef) -> ObjectRef:
    return ObjectRef(message.key, message.size_bytes, message.sha256)
