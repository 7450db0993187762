"""`python -m localmesh.reaper HOME`: ends the mesh in HOME when the process that holds stdin ends.

Servers and services die with the test process by themselves, but workers outlive the Scaler that
started them, by design. The harness holds the other end of this process's stdin, so even a killed
test run leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

GRACE_SECONDS = 0.5


class Reaper:
    """The guard of one mesh: alive until `release`, or until this process is gone."""

    def __init__(self, home: Path) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "localmesh.reaper", str(home)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # a Ctrl-C for the test run is none for its guard
        )

    def release(self) -> None:
        """Call it off, the mesh being down."""
        self._guard.send_signal(signal.SIGTERM)
        self._guard.communicate()


def main(home: Path) -> None:
    sys.stdin.buffer.read()
    # Only now: while it waits it should weigh nothing.
    from localmesh.mesh import down

    down(home, grace=GRACE_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
