"""`python -m localmesh up|down|clean|status|logs`: the mesh by hand, for debugging.

The `jobmesh` command does the same, and looks better doing it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from localmesh.errors import LocalError
from localmesh.logs import tail_logs
from localmesh.mesh import clean, down, up
from localmesh.progress import Step
from localmesh.settings import MeshSettings, default_home
from localmesh.status import status


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m localmesh", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "clean", "status", "logs"))
    parser.add_argument("name", nargs="?", default="", help="whose logs")
    parser.add_argument("--home", type=Path, default=default_home(os.environ))
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args(arguments)
    try:
        _run(given.command, given.home, given.name, given.follow)
    except LocalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(command: str, home: Path, name: str, follow: bool) -> None:
    match command:
        case "up":
            report = up(home, MeshSettings.from_environment(os.environ), _show)
            _say(f"up in {report.seconds:.2f} s: {len(report.started)} started")
        case "down":
            down(home, _show)
        case "clean":
            clean(home, _show)
        case "status":
            _show_status(home)
        case "logs":
            for line in tail_logs(home, name, follow=follow):
                _say(f"{line.name:<14} {line.text}")


def _show_status(home: Path) -> None:
    for row in status(home):
        condition = "ready" if row.ready else "alive" if row.alive else "down"
        ports = " ".join(f"{key}={port}" for key, port in list(row.ports.items())[:2])
        _say(
            f"{row.name:<14} {row.kind:<8} {condition:<6} pid {row.pid or '-':<8} {ports:<30}"
            f" cpu {row.cpu_seconds:7.2f} s  {row.memory_bytes >> 20:5} MB"
            f"  up {row.uptime_seconds:.0f} s"
        )


def _show(step: Step) -> None:
    _say(f"{step.seconds:6.2f} s  {step.name:<14} {step.action}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
