"""Names of objects. The first segment is always the namespace, which is what rights hang on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OUTPUT = re.compile(rf"[a-z0-9-]+/outputs/({_UUID})/([0-9]{{1,18}})/([^/]+)")
_INPUT = re.compile(rf"[a-z0-9-]+/inputs/{_UUID}")
_NAME = re.compile(r"[a-zA-Z0-9_=-][a-zA-Z0-9._=-]{0,199}")


def input_key(namespace: str, upload_id: UUID) -> str:
    """Where an input is kept: one key per upload."""
    return f"{_checked(_NAMESPACE, namespace)}/inputs/{upload_id}"


#: The name of the object that becomes the job's output; others belong to the attempt alone.
OUTPUT_NAME = "output"


def output_key(namespace: str, job_id: UUID, fence: int, name: str) -> str:
    """Where an attempt's output is kept: no other attempt has this key."""
    space = _checked(_NAMESPACE, namespace)
    return f"{space}/outputs/{job_id}/{fence}/{_checked(_NAME, name)}"


@dataclass(frozen=True, slots=True)
class OutputKey:
    """What the key of an attempt's object says."""

    job_id: UUID
    fence: int
    name: str


def read_output_key(key: str) -> OutputKey | None:
    """The parts of what `output_key` made; None for any other key."""
    found = _OUTPUT.fullmatch(key)
    if found is None:
        return None
    job_id, fence, name = found.groups()
    return OutputKey(UUID(job_id), int(fence), name)


def is_input_key(key: str) -> bool:
    """Whether `input_key` made it."""
    return _INPUT.fullmatch(key) is not None


def namespace_of(key: str) -> str:
    """The namespace a key belongs to."""
    return key.partition("/")[0]


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} cannot be part of an object's key")
    return text
