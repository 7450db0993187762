"""The public surface of the SDK: a name that leaves or joins it is a decision, not an accident."""

from __future__ import annotations

import subprocess
import sys

import jobmesh
import jobmesh.client
import jobmesh.errors
import jobmesh.testing
import pytest

SURFACE = {
    # define jobs
    "App", "Context", "JobFunction", "HandlerSpec", "job", "load_handlers", "Command",
    "load_commands",
    # run handlers (workers, tests)
    "Output", "invoke", "invoke_async",
    # submit and follow
    "Ack", "AsyncClient", "AsyncJobHandle", "Client", "JobHandle", "NewJob", "Retry",
    "After", "Unique",
    # what comes back
    "Job", "JobEvent", "JobState", "Schedule",
    # errors
    "AttemptCancelled", "CallError", "HandlerError", "InputError", "JobFailed", "JobmeshError",
    "OutputError", "PermanentFailure", "RetryAfter", "Snooze", "WaitTimeout",
}  # fmt: skip


def test_the_package_exports_what_it_promises() -> None:
    assert set(jobmesh.__all__) == SURFACE
    for name in jobmesh.__all__:
        assert getattr(jobmesh, name) is not None
    assert jobmesh.__all__ == sorted(jobmesh.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = jobmesh.nonsense


@pytest.mark.parametrize("heavy", ["grpc", "google", "asyncio", "typer", "rich"])
def test_importing_the_package_stays_light(heavy: str) -> None:
    script = f"import jobmesh, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_generated_contracts_come_from_this_checkout() -> None:
    from jobmesh.v1 import job_pb2

    assert "site-packages" not in job_pb2.__file__
    assert job_pb2.__file__.endswith("gen/jobmesh/v1/job_pb2.py")


def test_every_error_of_the_sdk_is_a_jobmesh_error() -> None:
    own = [
        value
        for value in vars(jobmesh.errors).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert len(own) > 15
    assert all(issubclass(kind, jobmesh.JobmeshError) for kind in own)


def test_every_grpc_code_the_mesh_uses_has_an_error_class() -> None:
    from services.mesh.errors import Code, MeshError

    used = {Code(kind.code).name for kind in MeshError.by_reason.values()}
    known = set(jobmesh.errors.BY_CODE)
    assert used - known <= {"DATA_LOSS"}
