"""Spans that connect a job's way through the mesh.

The trace context travels as a string, the W3C `traceparent`, so that it fits gRPC metadata, a NATS
header and a column of the job row alike:

    with tracing.start_span("claim", kind="internal", links=[job.traceparent]) as span:
        span.set("jobmesh.count", 12)
        message.traceparent = span.traceparent

With no exporter configured `start_span` yields one shared span that does nothing, and the SDK is
not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Literal, Protocol

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | int | float | bool]

_TRACEPARENT = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")


class Span(Protocol):
    """A stretch of work under way."""

    @property
    def traceparent(self) -> str:
        """What to hand on so that later work hangs on this span; empty when tracing is off."""
        ...

    def set(self, key: str, value: str | int | float | bool) -> None: ...

    def fail(self, error: BaseException | str) -> None:
        """Mark the span as failed; an exception that leaves the block does so by itself."""
        ...

    def end(self) -> None:
        """Finish it; only for spans from `open_span`."""
        ...


class _NoSpan:
    traceparent = ""

    def set(self, key: str, value: str | int | float | bool) -> None: ...

    def fail(self, error: BaseException | str) -> None: ...

    def end(self) -> None: ...


class Tracer(Protocol):
    """What turns calls into recorded spans: the SDK, behind `services.mesh.telemetry.spans`."""

    def open(
        self,
        name: str,
        kind: Kind,
        parent: str,
        links: Iterable[str],
        attributes: Attributes | None,
    ) -> Span: ...

    def close(self) -> None: ...


#: Of the traces in a batch, so many are linked to its span.
MOST_LINKS = 64


def sampled(traceparents: Iterable[str | None]) -> list[str]:
    """Those of a batch's traces that are recorded; the last byte of a traceparent says so."""
    recorded = (trace for trace in traceparents if trace and trace[-1] in "13579bdf")
    return list(islice(recorded, MOST_LINKS))


NO_SPAN: Span = _NoSpan()
_current: ContextVar[Span] = ContextVar("jobmesh_span", default=NO_SPAN)


def current_trace_id() -> str:
    """The trace id of the span this task is in, for log lines; empty if there is none."""
    return trace_id_of(_current.get().traceparent)


def trace_id_of(traceparent: str) -> str:
    """The trace id in a traceparent; empty if it is not one."""
    match = _TRACEPARENT.match(traceparent)
    return match[1] if match else ""


class Tracing:
    """Starts spans, or does nothing when made without a tracer. Passed by constructor."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    @property
    def enabled(self) -> bool:
        return self._tracer is not None

    def current_traceparent(self) -> str:
        """The context to hand on from here; empty when there is none."""
        return _current.get().traceparent

    @contextmanager
    def start_span(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        parent: str | None = None,
        links: Iterable[str] = (),
        attributes: Attributes | None = None,
    ) -> Iterator[Span]:
        """A span around a block. `parent` defaults to the current one; "" begins a new trace."""
        if self._tracer is None:
            yield NO_SPAN
            return
        span = self.open_span(name, kind, parent=parent, links=links, attributes=attributes)
        token = _current.set(span)
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            _current.reset(token)
            span.end()

    def open_span(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        parent: str | None = None,
        links: Iterable[str] = (),
        attributes: Attributes | None = None,
    ) -> Span:
        """A span that the caller ends; it does not become the current one."""
        if self._tracer is None:
            return NO_SPAN
        origin = _current.get().traceparent if parent is None else parent
        return self._tracer.open(name, kind, origin, links, attributes)

    def close(self) -> None:
        """Send what is still buffered, and end."""
        if self._tracer is not None:
            self._tracer.close()


@contextmanager
def current(span: Span) -> Iterator[None]:
    """Make an open span the current one for a block, without ending it."""
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)


def adopt(span: Span) -> None:
    """Make an open span the current one for the rest of this task, which must be the span's own."""
    _current.set(span)


def configure(
    service: str,
    instance: str,
    *,
    endpoint: str | None = None,
    file: str | None = None,
    ratio: float = 1.0,
) -> Tracing:
    """Tracing to an OTLP endpoint, a file of JSON lines, both, or off if neither is given."""
    if not endpoint and not file:
        return Tracing()
    # Imported here so that a process without tracing pays nothing for the SDK.
    from services.mesh.telemetry import spans

    return Tracing(spans.tracer(service, instance, endpoint=endpoint, file=file, ratio=ratio))
