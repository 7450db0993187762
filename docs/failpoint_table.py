"""Writes the table of failpoints in failpoints.md from the services' own lists.

python docs/failpoint_table.py            write it
"""

from __future__ import annotations

import importlib
from pathlib import Path

SERVICES = ("enqueue", "orchestrator", "scheduler", "worker", "scaler")
PAGE = Path(__file__).with_name("failpoints.md")
BEGIN, END = "<!-- table: docs/failpoint_table.py -->", "<!-- end of table -->"


def table() -> str:
    """One row per place, in the order in which work passes them."""
    rows = ["| failpoint | what has happened, and what has not | where |", "|---|---|---|"]
    for service in SERVICES:
        for place in importlib.import_module(f"services.{service}.failpoints").PLACES:
            drop = " · `drop`" if place.lossy else ""
            where = f"{place.when.value} `{place.owner.__name__}.{place.method}`{drop}"
            rows.append(f"| `{place.name}` | {place.about} | {where} |")
    return "\n".join(rows)


def main() -> None:
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}")


if __name__ == "__main__":
    main()
