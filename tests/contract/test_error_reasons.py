"""The error tree in Python and the reasons in the contract are the same list."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from jobmesh.v1 import error_reason_pb2

from services.mesh import errors
from services.mesh.errors import Code, MeshError

PROTO = Path(__file__).parents[2] / "proto/jobmesh/v1/error_reason.proto"
PREFIX = "ERROR_REASON_"
# A value with the comment above it: "// NOT_FOUND: … Metadata: `type`."
VALUE = re.compile(r"((?:^ *//.*\n)+) *ERROR_REASON_(\w+) = \d+;", re.MULTILINE)


def documented() -> dict[str, tuple[str, set[str]]]:
    """Each reason of the proto file with the code and the metadata keys its comment names."""
    found = {}
    for comment, reason in VALUE.findall(PROTO.read_text()):
        text = re.sub(r"\s*//\s*", " ", comment).strip()
        keys = re.search(r"Metadata: ([^.]*?)(\.|, to be| of |$)", text)
        names = set(re.findall(r"`(\w+)`", keys[1])) if keys else set()
        found[reason] = (text.split(":")[0], names)
    del found["UNSPECIFIED"]
    return found


def example(kind: type[MeshError]) -> MeshError:
    """An error of that class, made with a plausible value for each argument it requires."""
    required = [
        parameter
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    values: list[Any] = [7 if "int" in str(p.annotation) else "x" for p in required]
    return kind(*values)


def test_every_generated_reason_has_a_class() -> None:
    values = error_reason_pb2.ErrorReason.DESCRIPTOR.values
    generated = {value.name.removeprefix(PREFIX) for value in values}
    assert generated - {"UNSPECIFIED"} == set(MeshError.by_reason)


@pytest.mark.parametrize("reason", sorted(documented()))
def test_code_and_metadata_agree_with_the_contract(reason: str) -> None:
    code, keys = documented()[reason]
    error = example(MeshError.by_reason[reason])
    assert error.code is Code[code]
    assert set(error.metadata) == keys
    assert error.message


def test_the_drawn_tree_names_every_class() -> None:
    drawn = set(re.findall(r"\b[A-Z]\w+\b", inspect.getdoc(errors) or ""))
    classes = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    public = {name for name in classes if issubclass(getattr(errors, name), MeshError)}
    assert public <= drawn


def test_unavailable_and_exhausted_errors_say_when_to_retry() -> None:
    waiting = {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}
    kinds = [kind for kind in MeshError.by_reason.values() if kind.code in waiting]
    assert kinds
    assert all(example(kind).retry_after is not None for kind in kinds)
