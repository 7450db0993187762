"""The in-memory object store does what the port promises; keys are well formed."""

from __future__ import annotations

from uuid import UUID

import pytest

from services.mesh.blob import input_key, output_key
from services.mesh.blob.keys import namespace_of
from services.mesh.blob.memory import MemoryBlobStore
from services.mesh.testing.conformance.blob import BlobConformance

JOB = UUID("0190a8b4-0000-7000-8000-000000000001")


@pytest.fixture
def store() -> MemoryBlobStore:
    return MemoryBlobStore()


class TestMemoryBlobStore(BlobConformance):
    pass


def test_keys_begin_with_their_namespace() -> None:
    assert input_key("team-a", JOB) == f"team-a/inputs/{JOB}"
    assert output_key("team-a", JOB, 3, "out.bin") == f"team-a/outputs/{JOB}/3/out.bin"
    assert namespace_of(input_key("team-a", JOB)) == "team-a"


@pytest.mark.parametrize("namespace", ["", "../other", "a/b", "A", "-a"])
def test_a_namespace_cannot_leave_its_folder(namespace: str) -> None:
    with pytest.raises(ValueError, match="key"):
        input_key(namespace, JOB)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "x" * 201])
def test_an_output_name_is_one_plain_segment(name: str) -> None:
    with pytest.raises(ValueError, match="key"):
        output_key("default", JOB, 1, name)
