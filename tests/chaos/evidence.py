"""Everything a run left behind, read into memory for the checker."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.history import read_lines
from tests.chaos.ledger import Ledger, read_ledger

#: What every run leaves behind. An empty file says that there was nothing; a missing one, nothing.
FILES = (
    "plan.json",
    "history.jsonl",
    "watches.jsonl",
    "effects.log",
    "faults.jsonl",
    "deaths.json",
    "settled.json",
    "dump-healed/jobs.jsonl",
    "dump/jobs.jsonl",
    "dump/events.jsonl",
    "dump/schedules.jsonl",
    "dump/unique_keys.jsonl",
    "dump/objects.jsonl",
    "dump/locks.json",
)


class Event(NamedTuple):
    """One transition as the shard stored it."""

    version: int
    state: int
    reason: int
    fence: int
    attempt: int
    worker: str | None
    time: float


@dataclass(frozen=True, slots=True)
class Row:
    """One job as it stood in one shard when it was dumped."""

    id: str
    shard: str
    namespace: str
    type: str
    state: int
    version: int
    fence: int
    attempt: int
    key: str | None
    ref: str
    schedule: str | None
    nominal: float | None
    first_due: float
    created: float
    output: bytes | None
    output_ref: Mapping[str, Any] | None
    input_ref: Mapping[str, Any] | None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    origin: str | None = None
    """The job that this one repeats."""
    unique: str | None = None
    """Its unique key."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Row:
        output = line["output"]
        return cls(
            id=line["id"],
            shard=line["shard"],
            namespace=line["namespace"],
            type=line["type"],
            state=line["state"],
            version=line["version"],
            fence=line["dispatch_no"],
            attempt=line["attempt"],
            key=line["key"],
            ref=(line["labels"] or {}).get("ref", "") or _tag(line.get("input")),
            schedule=line["schedule"],
            nominal=line["nominal"],
            first_due=line["first_due"],
            created=line["created"],
            output=base64.b64decode(output) if output is not None else None,
            output_ref=line["output_ref"],
            input_ref=line["input_ref"],
            priority=line.get("priority", 0),
            labels=line["labels"] or {},
            origin=line.get("origin"),
            unique=line.get("unique_key"),
        )

    def said(self) -> Mapping[str, Any] | None:
        """What the handler returned, if it stands in the row itself."""
        if self.output is None:
            return None
        answer = json.loads(self.output)
        return answer if isinstance(answer, dict) else None


def _tag(data: str | None) -> str:
    """What the input of a job without a label says of it."""
    try:
        said = json.loads(base64.b64decode(data or ""))
    except ValueError:
        return ""
    return str(said.get("tag", "")) if isinstance(said, dict) else ""


@dataclass(slots=True)
class Evidence:
    """What one run left behind. Tests make their own by hand."""

    rows: list[Row] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    watches: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    schedules: list[dict[str, Any]] = field(default_factory=list)
    earlier: dict[str, Row] = field(default_factory=dict)
    """Jobs that had ended in a dump taken before the last one."""
    locks: list[str] = field(default_factory=list)
    held: list[dict[str, Any]] = field(default_factory=list)
    """Unique keys that somebody holds: namespace, key, job."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    """Units that were found dead though nobody had killed them."""
    unsettled: int = 0
    """Jobs that were still open when they had had their time after healing."""
    plan: dict[str, Any] = field(default_factory=dict)
    """What the run set out to do: `kinds` that must fire."""
    versions: dict[str, list[str]] = field(default_factory=dict)
    """Which each role was started in, where there were two."""
    missing: list[str] = field(default_factory=list)
    """Files of a run that are not there, or not to their end: what they would say is not known."""

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        dump = folder / "dump"
        return cls(
            rows=[Row.of(line) for line in read_lines(dump / "jobs.jsonl")],
            events=_events(read_lines(dump / "events.jsonl")),
            history=list(read_lines(*sorted(folder.glob("history*.jsonl")))),
            watches=list(read_lines(folder / "watches.jsonl")),
            ledger=read_ledger(folder / "effects.log"),
            objects={line["key"]: line for line in read_lines(dump / "objects.jsonl")},
            schedules=list(read_lines(dump / "schedules.jsonl")),
            earlier=_ended(read_lines(folder / "dump-healed" / "jobs.jsonl")),
            locks=_json(dump / "locks.json", []),
            held=list(read_lines(dump / "unique_keys.jsonl")),
            faults=list(read_lines(folder / "faults.jsonl")),
            deaths=_json(folder / "deaths.json", []),
            unsettled=_unsettled(_json(folder / "settled.json", {})),
            plan=_json(folder / "plan.json", {}),
            versions=_json(folder / "versions.json", {}),
            missing=list(_missing(folder)),
        )


def _missing(folder: Path) -> Iterator[str]:
    for name in FILES:
        path = folder / name
        if not path.exists():
            yield f"{name} is missing"
        elif path.suffix == ".jsonl" and not _is_whole(path):
            yield f"{name} is cut short"


def _is_whole(path: Path) -> bool:
    """Whether its last line is: every writer ends each of them."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")


def _events(lines: Iterable[Any]) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    for job, *rest in lines:
        events.setdefault(job, []).append(Event(*rest))
    return events


def _ended(lines: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    rows = (Row.of(line) for line in lines if line["state"] in (4, 5, 6, 7))
    return {row.id: row for row in rows}


def _unsettled(told: Any) -> int:
    """Runs of older versions only say how long it took."""
    return sum(told["open"].values()) if isinstance(told, dict) and told else 0


def _json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else default
