"""The HTTP endpoint for scrapers and probes: /metrics, /healthz, /readyz, by GET only."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

from services.mesh.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 5.0
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


class MetricsEndpoint:
    """Serves the registry on the event loop; a scrape costs a few milliseconds.

    `missing` tells what the process waits for; /readyz answers 503 while that, or `alive`, says no.
    """

    def __init__(
        self,
        address: str,
        metrics: Metrics,
        alive: Callable[[], bool],
        missing: Callable[[], dict[str, str]],
    ) -> None:
        self.name = "metrics endpoint"
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._metrics, self._alive, self._missing = metrics, alive, missing
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is really served; differs from the configured one if that was 0."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        host = self._host.strip("[]")
        self._server = await asyncio.start_server(self._serve, host, self._port, limit=8192)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("dropped an HTTP request", extra={"action": "http_dropped"})
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").partition(" ")
        path = rest.split(" ", 1)[0].split("?", 1)[0]
        if method not in ("GET", "HEAD"):
            return _response(405, _TEXT, b"GET only\n", body=True)
        status, kind, content = self._page(path)
        return _response(status, kind, content, body=method == "GET")

    def _page(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, _TEXT, self._metrics.render()
        if path == "/healthz":
            return (200, _TEXT, b"alive\n") if self._alive() else (503, _TEXT, b"draining\n")
        if path == "/readyz":
            missing = self._missing()
            ready = self._alive() and not missing
            body = json.dumps({"ready": ready, "missing": missing}).encode() + b"\n"
            return (200 if ready else 503), _JSON, body
        return 404, _TEXT, b"/metrics, /healthz or /readyz\n"


def _response(status: int, kind: str, content: bytes, *, body: bool) -> bytes:
    reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed"}.get(status, "Unavailable")
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (content if body else b"")
