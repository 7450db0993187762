"""One method of a service, with what the policies remember about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import Histogram

from services.mesh.errors import Code
from services.mesh.telemetry.tracing import NO_SPAN, Span


class Method:
    """A method that is served: its name in parts, and its calls under way."""

    __slots__ = (
        "checked",
        "full_name",
        "in_flight",
        "name",
        "seconds",
        "service",
        "share",
        "waits",
    )

    def __init__(
        self,
        service: str,
        name: str,
        *,
        checked: bool,
        share: float = 1.0,
        waits: Callable[[Any], float] | None = None,
    ) -> None:
        self.service, self.name = service, name
        #: As in spans and metrics: no leading slash.
        self.full_name = f"{service}/{name}"
        self.checked = checked
        #: Of the calls that the process serves at once, what it may take.
        self.share = share
        #: How many seconds a request asks to be kept waiting for; None: it cannot.
        self.waits = waits
        self.in_flight = 0
        #: The duration metric by outcome, looked up once per outcome.
        self.seconds: dict[Code, Histogram] = {}


class Call:
    """One call under way."""

    __slots__ = ("began", "context", "late", "method", "span", "task", "timer")

    def __init__(self, method: Method, context: Any) -> None:
        self.method, self.context = method, context
        self.began = time.perf_counter()
        self.span: Span = NO_SPAN
        #: Of the handler, where the caller set no deadline; `late`: it was cancelled for that.
        self.task: asyncio.Task[Any] | None = None
        self.late = False
        #: Of one that may take longer than others.
        self.timer: asyncio.TimerHandle | None = None
