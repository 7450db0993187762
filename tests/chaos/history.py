"""What clients asked and were told, one JSON line per call, for the checker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jobmesh.client.submission import NOT_STORED
from jobmesh.errors import CallError, JobmeshError

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
#: Why another content under a known key is refused.
CONFLICT = "IDEMPOTENCY_CONFLICT"
#: Why a job is refused whose unique key another one holds.
HELD = "UNIQUE_CONFLICT"
_REFUSALS = ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION")


def outcome_of(error: JobmeshError) -> str:
    """Whether a failed submission has certainly stored nothing, or may have."""
    if not isinstance(error, CallError):
        return UNKNOWN
    certain = error.status in _REFUSALS or error.reason in NOT_STORED
    return FAIL if certain else UNKNOWN


class Journal:
    """An append-only file of JSON lines; each is on its way to the disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def write(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_lines(*paths: Path) -> Iterator[dict[str, Any]]:
    """The lines of journals, one file after the other; a torn last line is left out."""
    for path in paths:
        if not path.exists():
            continue
        with path.open() as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)


def now() -> float:
    return time.time()
