"""Dependencies and unique keys: as they are submitted, and as a row has them."""

from __future__ import annotations

from jobmesh.v1 import job_pb2

from services.mesh.errors import InvalidField
from services.mesh.jobs import ids
from services.mesh.jobs.model import JobRecord
from services.mesh.jobs.ties import Dependency, ParentFailurePolicy, Ties, UniquePolicy


def ties_from_proto(spec: job_pb2.JobSpec) -> Ties:
    """What the submitter said; an unset policy is the first one."""
    return Ties(
        tuple(dependency_from_proto(one, n) for n, one in enumerate(spec.dependencies)),
        unique_key=spec.unique_key or None,
        unique_policy=UniquePolicy(spec.unique_policy or UniquePolicy.KEEP),
    )


def dependency_from_proto(message: job_pb2.Dependency, number: int) -> Dependency:
    """One dependency; an id that this mesh cannot have made is refused."""
    try:
        job_id = ids.parse(message.job_id.lower())
    except ValueError as error:
        field = f"dependencies[{number}].job_id"
        raise InvalidField(field, "expected a job id as this service returned it") from error
    policy = ParentFailurePolicy(message.on_failure or ParentFailurePolicy.CANCEL)
    return Dependency(job_id, policy)


def fill_ties(spec: job_pb2.JobSpec, record: JobRecord) -> None:
    """What of a row's ties its spec shows."""
    spec.unique_key = record.unique_key
    if record.unique_policy is not None:
        spec.unique_policy = job_pb2.UniquePolicy.ValueType(record.unique_policy)
    for dependency in record.dependencies:
        spec.dependencies.add(
            job_id=str(dependency.job_id),
            on_failure=job_pb2.ParentFailurePolicy.ValueType(dependency.on_failure),
        )
