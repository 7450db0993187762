"""Evidence made by hand: a small run in which all went well, to be broken one way per test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.chaos import ledger
from tests.chaos.evidence import Event, Evidence, Row

#: (state, reason, fence) of a job that ran once.
RAN = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (4, 4, 1))
#: Rescued from a worker that was frozen, and run again.
RESCUED = ((1, 1, 0), (2, 2, 1), (3, 3, 1), (1, 9, 1), (2, 2, 2), (3, 3, 2), (4, 4, 2))
BEGAN = 1000.0


class Story:
    """Grows evidence job by job."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self._lines: list[str] = []

    def job(
        self,
        name: str,
        steps: Sequence[tuple[int, int, int]] = RAN,
        *,
        attempts: int = 1,
        ledger: str | None = None,
        after: float = 0.0,
        **order: Any,
    ) -> Row:
        """A submission that was acknowledged, its row, its events, and what its handler did. All of
        it so many seconds `after` the others.
        """
        self.tell(name, attempts=attempts, **order)
        at = BEGAN + after
        events = [
            Event(version, state, reason, fence, _attempt(steps[:version]), "w", at + version)
            for version, (state, reason, fence) in enumerate(steps, start=1)
        ]
        row = self._row(name, events)
        self.evidence.rows.append(row)
        self.evidence.events[name] = events
        self.write(ledger if ledger is not None else _plain_ledger(name, steps))
        return row

    def tell(self, name: str, outcome: str = "ok", **fields: Any) -> None:
        """A line of the history about a submission."""
        said: dict[str, Any] = {"op": "enqueue", "client": "c0", "ref": f"ref-{name}"}
        said |= {"outcome": outcome}
        said |= {"namespace": "blue", "attempts": 1, "fails": 0, "expires": False, "lot": "lot"}
        said |= {"input": f"input-{name}"}
        self.evidence.history.append({**said, "job": name, **fields})

    def op(self, op: str, name: str, **fields: Any) -> None:
        said = {"op": op, "client": "c0", "ref": f"ref-{name}", "outcome": "ok", "job": name}
        self.evidence.history.append({**said, **fields})

    def write(self, text: str) -> None:
        """Lines for the ledger: `S job fence [digest]` or `E job fence outcome`, in order."""
        for line in text.strip().splitlines():
            kind, job, fence, *rest = line.split()
            if kind == "S" and not rest:
                rest = [f"input-{job}"]
            at = f"{BEGAN + 10 + len(self._lines)}"
            claims = (e for e in self.evidence.events.get(job, ()) if e.fence == int(fence))
            attempt = next((str(claim.attempt) for claim in claims), fence)
            self._lines.append(" ".join([kind, job, fence, attempt, "7", "6", at, *rest]))
        self.evidence.ledger = ledger.parse(self._lines)

    def watch(self, watcher: str, *told: tuple[str, int, int], ids: Sequence[str] = ()) -> None:
        """A watcher that was there from the beginning, and what it was told."""
        lines = self.evidence.watches
        opened = {"opened": True, "namespace": "blue", "jobs": list(ids), "at": 0.0}
        lines.append({"watcher": watcher, **opened})
        lines.append({"watcher": watcher, "live": True, "at": 1.0})
        lines.append({"watcher": watcher, "at": 2.0, "told": list(told)})

    def change(self, name: str, **fields: Any) -> None:
        """Put another row in the place of one."""
        rows = self.evidence.rows
        rows[:] = [replace(row, **fields) if row.id == name else row for row in rows]

    def _row(self, name: str, events: Sequence[Event]) -> Row:
        last = events[-1]
        output = json.dumps({"job": name, "fence": last.fence}).encode()
        return Row(
            id=name,
            shard="s0",
            namespace="blue",
            type="hop",
            state=last.state,
            version=last.version,
            fence=last.fence,
            attempt=last.attempt,
            key=None,
            ref=f"ref-{name}",
            schedule=None,
            nominal=None,
            first_due=BEGAN,
            created=BEGAN,
            output=output if last.state == 4 else None,
            output_ref=None,
            input_ref=None,
        )


def _attempt(steps: Sequence[tuple[int, int, int]]) -> int:
    """Only a failure spends one; a rescue gives it back."""
    return sum(reason == 5 for _, reason, _ in steps[:-1]) + any(fence for _, _, fence in steps)


def _plain_ledger(name: str, steps: Sequence[tuple[int, int, int]]) -> str:
    lines = []
    for state, reason, fence in steps:
        if reason == 3:
            lines.append(f"S {name} {fence}")
        elif state == 4:
            lines.append(f"E {name} {fence} done")
        elif reason in (5, 6):
            lines.append(f"E {name} {fence} fail")
    return "\n".join(lines)
