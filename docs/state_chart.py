"""Draws the state chart of docs/life-of-a-job.md from the transition table in the code.

`python docs/state_chart.py` rewrites the generated part of the page; `--check` only says whether it
is fresh.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services.mesh.jobs.states import TERMINAL, TRANSITIONS, JobState

PAGE = Path(__file__).parent / "life-of-a-job.md"
BEGIN, END = (
    "<!-- generated from services/mesh/jobs/states.py: begin -->\n",
    "<!-- generated: end -->\n",
)


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
    rows = ["| from | to | cause | guard, checked in the statement itself |", "|---|---|---|---|"]
    for step in TRANSITIONS:
        source = "(new)" if step.source is None else step.source.name
        rows.append(f"| {source} | {step.target.name} | {step.cause.name} | {step.guard} |")
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
