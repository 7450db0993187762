"""Draws the state chart of docs/life-of-a-job.md from the transition table in the code.

`python docs/state_chart.py` rewrites the generated part of the page; `--check` only says whether it
is fresh.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services.mesh.jobs.states import TERMINAL, TRANSITIONS, Cause, JobState, Transition
from services.mesh.store.queries import Queries

PAGE = Path(__file__).parent / "life-of-a-job.md"
BEGIN, END = (
    "<!-- generated from services/mesh/jobs/states.py: begin -->\n",
    "<!-- generated: end -->\n",
)


#: The statements that make a transition, by its cause; those of BLOCKED jobs apart.
STATEMENTS = {
    Cause.CREATED: ("put_new_jobs", "put_jobs", "put_tied_jobs"),
    Cause.REDRIVEN: ("redrive",),
    Cause.UPDATED: ("update_job", "replace_job"),
    Cause.UNBLOCKED: ("release",),
    Cause.PARENT_FAILED: ("release",),
    Cause.CANCELLED: ("cancel",),
    Cause.EXPIRED: ("expire_overdue",),
    Cause.CLAIMED: (
        "claim",
        "claim_below",
        "claim_in_turn",
        "claim_keyed",
        "claim_keyed_behind",
    ),
    # A short job's start is recorded by the statement that ends it.
    Cause.STARTED: ("start", "succeed", "succeed_in_columns", "settle"),
    Cause.SUCCEEDED: ("succeed", "succeed_in_columns"),
    Cause.LATE_COMMIT: ("succeed", "succeed_in_columns"),
    Cause.RETRY: ("settle",),
    Cause.FAILED: ("settle",),
    Cause.HANDED_BACK: ("settle",),
    Cause.SNOOZED: ("settle",),
    Cause.SWEPT: ("settle",),
    Cause.RESCUED: ("settle",),
}
OF_BLOCKED = {Cause.CREATED: ("put_tied_jobs",), Cause.EXPIRED: ("expire_blocked",)}


def statements_of(step: Transition) -> tuple[str, ...]:
    """The names of the statements that make this step; all of them write."""
    blocked = JobState.BLOCKED in (step.source, step.target)
    names = (OF_BLOCKED if blocked else {}).get(step.cause) or STATEMENTS[step.cause]
    queries = Queries.load()
    assert all(queries[name].writes for name in names)
    return names


def chart() -> str:
    """A Mermaid state diagram; arrows between the same two states share a line."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for step in TRANSITIONS:
        source = "[*]" if step.source is None else step.source.name
        cause = step.cause.name.lower().replace("_", " ")
        arrows.setdefault((source, step.target.name), []).append(cause)
    lines = [
        f"    {source} --> {target}: {', '.join(causes)}"
        for (source, target), causes in arrows.items()
    ]
    lines += [f"    {state.name} --> [*]" for state in JobState if state in TERMINAL]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def table() -> str:
    rows = [
        "| from | to | cause, the event's reason | guard, checked in the statement | statement |",
        "|---|---|---|---|---|",
    ]
    for step in TRANSITIONS:
        source = "(new)" if step.source is None else step.source.name
        sql = ", ".join(f"`{name}`" for name in statements_of(step))
        rows.append(f"| {source} | {step.target.name} | {step.cause.name} | {step.guard} | {sql} |")
    return "\n".join([*rows, ""])


def main() -> int:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    fresh = f"{before}{BEGIN}\n{chart()}\n{table()}\n{END}{after}"
    if "--check" in sys.argv:
        return int(fresh != text)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
