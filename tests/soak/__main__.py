"""`make soak [MINUTES=60] [RATE=300]`: moderate load for an hour, and what grew meanwhile.

Ends with a table, a picture and one line: `soak: PASS|FAIL …`; exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from pathlib import Path

from tests.soak.run import Plan, Soak

RUNS = Path("soak-runs")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=300.0, help="jobs per second")
    parser.add_argument("--folder", type=Path, help="where the run is kept")
    given = parser.parse_args()
    folder = given.folder or RUNS / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    passed = asyncio.run(Soak(Plan(given.minutes * 60, given.rate), folder).go())
    shutil.copytree(folder / "mesh" / "logs", folder / "logs", dirs_exist_ok=True)
    shutil.rmtree(folder / "mesh", ignore_errors=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
