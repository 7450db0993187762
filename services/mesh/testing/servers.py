"""A server of a test's own, to be frozen, killed and restarted."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from localmesh.servers import Running, Server, start_servers


class OwnServer:
    """One server from the wheels. It ends with the test process at the latest.

    Starting blocks the event loop for as long as it takes, as the server belongs to this thread.
    """

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.home = home
        self._running: Running | None = None

    @classmethod
    def start_together(cls, servers: Sequence[Server], home: Path) -> list[OwnServer]:
        """Start servers that only work together, such as the members of a cluster."""
        running = {r.unit.name: r for r in start_servers(servers, home, die_with_caller=True)}
        owned = [cls(server, home) for server in servers]
        for own in owned:
            own._running = running[own.server.name]
        return owned

    def start(self) -> None:
        """Start it, or start it again on the data it has."""
        (self._running,) = start_servers([self.server], self.home, die_with_caller=True)

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        assert self._running is not None
        self._signal(signal.SIGKILL)
        self._running.process.wait(5.0)

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self._running is not None:
            self._running.process.signal(signal.SIGCONT)
            self._running.stop()
            self._running = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._running is not None, "not started"
        self._running.process.signal(number)
