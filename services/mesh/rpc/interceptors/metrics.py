"""How long calls take and how they end, by method and code."""

from __future__ import annotations

import time

from services.mesh.errors import Code
from services.mesh.rpc.interceptors.method import Call, Method
from services.mesh.telemetry.metrics import Metrics


class CallMetrics:
    """`rpc_server_duration_seconds{method, code}` and `rpc_server_in_flight{method}`."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.histogram(
            "rpc_server_duration_seconds", "How long a call was served.", ("method", "code")
        )
        self._in_flight = metrics.gauge(
            "rpc_server_in_flight", "Calls and streams under way.", ("method",)
        )

    def register(self, method: Method) -> None:
        # Read when scraped: a plain integer per call is cheaper than a metric's lock.
        self._in_flight.labels(method.full_name).set_function(lambda: method.in_flight)

    def begin(self, call: Call) -> None:
        call.method.in_flight += 1

    def end(self, call: Call, code: Code) -> None:
        method = call.method
        method.in_flight -= 1
        child = method.seconds.get(code)
        if child is None:
            child = method.seconds[code] = self._seconds.labels(method.full_name, code.name)
        child.observe(time.perf_counter() - call.began)
