"""The error of one item of a batch: a MeshError inside a message instead of a status."""

from __future__ import annotations

from jobmesh.v1 import job_pb2

from services.mesh.errors import Code, FieldViolation, MeshError


def to_item_error(error: MeshError) -> job_pb2.ItemError:
    """The error as the outcome of one item."""
    return job_pb2.ItemError(
        code=int(error.code),
        reason=error.reason,
        message=error.message,
        metadata=error.metadata,
        field_violations=[
            job_pb2.FieldViolation(field=v.field, description=v.description)
            for v in error.violations
        ],
    )


def from_item_error(item: job_pb2.ItemError) -> MeshError:
    """The error behind an item's outcome, of the class its reason names."""
    return MeshError.restore(
        item.reason,
        Code(item.code),
        item.message,
        metadata=dict(item.metadata),
        violations=[FieldViolation(v.field, v.description) for v in item.field_violations],
    )
