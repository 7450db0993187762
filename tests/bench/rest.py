"""What meshes cost at rest, side by side: `python -m tests.bench.rest HOME [HOME …] [--threads]`.

For each process of the meshes that `jobmesh up` left in these folders: percent of a core and
wake-ups per second, by the kernel's own count (`/proc/<pid>/task/*`), workers not included. Two
versions are compared in one run: the same process moves by a third from hour to hour.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench.cpu import descendants

_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


class Thread(NamedTuple):
    """Of a unit of a mesh; a thread of a given number is the same for as long as it lives."""

    home: str
    unit: str
    number: int
    name: str


class Spent(NamedTuple):
    """Since a thread began, or per second."""

    seconds: float
    wakes: float


def read(homes: list[str]) -> dict[Thread, Spent]:
    """Every thread of every unit, now."""
    return {
        thread: spent
        for home in homes
        for unit, entry in json.loads(Path(home, "state.json").read_text())["processes"].items()
        # The Scaler's children are workers.
        for pid in [entry["pid"], *(descendants(entry["pid"]) if unit != "scaler" else [])]
        for thread, spent in _threads(home, unit, pid)
    }


def _threads(home: str, unit: str, pid: int) -> Iterator[tuple[Thread, Spent]]:
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            switches = _SWITCHES.search((task / "status").read_text())
            name = (task / "comm").read_text().strip()
        except OSError:
            continue  # ended meanwhile
        if switches is not None:
            wakes = float(switches[1])
            yield Thread(home, unit, int(task.name), name), Spent(nanoseconds / 1e9, wakes)


def per_second(homes: list[str], seconds: float) -> dict[Thread, Spent]:
    """What each thread spends per second while so many pass."""
    before, began = read(homes), time.monotonic()
    time.sleep(seconds)
    after, took = read(homes), time.monotonic() - began
    return {
        thread: Spent((spent.seconds - old.seconds) / took, (spent.wakes - old.wakes) / took)
        for thread, spent in after.items()
        if (old := before.get(thread))
    }


def _row(name: str, threads: dict[Thread, Spent]) -> str:
    percent = 100 * sum(spent.seconds for spent in threads.values())
    wakes = sum(spent.wakes for spent in threads.values())
    each = f"{percent * 1e4 / wakes:6.0f} µs each" if wakes else ""
    return f"{name:20}{percent:7.3f} % of a core{wakes:8.1f} wake-ups/s {each}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("homes", nargs="+")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--threads", action="store_true")
    given = parser.parse_args()
    spent = per_second(given.homes, given.seconds)
    for home in given.homes:
        units: dict[str, dict[Thread, Spent]] = defaultdict(dict)
        for thread, cost in spent.items():
            if thread.home == home:
                units[thread.unit][thread] = cost
        print(home)
        for unit, threads in sorted(units.items()):
            print(_row(unit, threads))
            if given.threads:
                for thread, cost in threads.items():
                    print(_row(f"  {thread.name}", {thread: cost}))
        print(_row("all", {t: c for threads in units.values() for t, c in threads.items()}))


if __name__ == "__main__":
    main()
