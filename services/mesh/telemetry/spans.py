"""Tracing by the OpenTelemetry SDK; imported only when tracing is on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from services.mesh.telemetry.metrics import version
from services.mesh.telemetry.tracing import _TRACEPARENT, Attributes, Kind

_EXPORT_SECONDS = 2
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}


def tracer(
    service: str, instance: str, *, endpoint: str | None, file: str | None, ratio: float
) -> SdkTracer:
    """A tracer that sends to the given places."""
    resource = Resource.create(
        {
            "service.namespace": "jobmesh",
            "service.name": f"jobmesh-{service}",
            "service.instance.id": instance,
            "service.version": version(),
        }
    )
    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(ratio)))
    if endpoint:
        provider.add_span_processor(BatchSpanProcessor(_otlp(endpoint)))
    if file:
        provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path(file), service)))
    return SdkTracer(provider)


def _otlp(endpoint: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    # The timeout covers the retries; the last export, at the end of the process, is waited for.
    insecure = not endpoint.startswith("https")
    return OTLPSpanExporter(endpoint=endpoint, insecure=insecure, timeout=_EXPORT_SECONDS)


class SdkSpan:
    """A span of the SDK behind our narrow port."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        at = span.get_span_context()
        self.traceparent = f"00-{at.trace_id:032x}-{at.span_id:016x}-{int(at.trace_flags):02x}"

    def set(self, key: str, value: str | int | float | bool) -> None:
        self._span.set_attribute(key, value)

    def fail(self, error: BaseException | str) -> None:
        if isinstance(error, BaseException):
            self._span.record_exception(error)
        self._span.set_status(trace.StatusCode.ERROR, str(error))

    def end(self) -> None:
        self._span.end()


class SdkTracer:
    """Opens SDK spans from traceparent strings."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("jobmesh", version())

    def open(
        self,
        name: str,
        kind: Kind,
        parent: str,
        links: Iterable[str],
        attributes: Attributes | None,
    ) -> SdkSpan:
        origin = context_of(parent)
        linked = [trace.Link(context) for context in map(context_of, links) if context is not None]
        # An empty Context, not None: None would mean the SDK's own idea of the current span.
        context = Context()
        if origin is not None:
            context = trace.set_span_in_context(NonRecordingSpan(origin), context)
        span = self._tracer.start_span(
            name, context, kind=_KINDS[kind], links=linked, attributes=attributes
        )
        return SdkSpan(span)

    def close(self) -> None:
        self._provider.shutdown()


def context_of(traceparent: str) -> SpanContext | None:
    """The span a traceparent names; None if it is malformed or empty."""
    match = _TRACEPARENT.match(traceparent)
    if match is None:
        return None
    context = SpanContext(
        trace_id=int(match[1], 16),
        span_id=int(match[2], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match[3], 16)),
    )
    return context if context.is_valid else None


class FileExporter(SpanExporter):
    """One JSON line per finished span, appended in one write so that processes may share a file."""

    def __init__(self, path: Path, service: str) -> None:
        self._service = service
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        lines = "".join(f"{json.dumps(self._told(span), default=str)}\n" for span in spans)
        os.write(self._fd, lines.encode())
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _told(self, span: ReadableSpan) -> dict[str, object]:
        context = span.get_span_context()
        return {
            "service": self._service,
            "name": span.name,
            "kind": span.kind.name.lower(),
            "trace_id": f"{context.trace_id:032x}" if context else "",
            "span_id": f"{context.span_id:016x}" if context else "",
            "parent_span_id": f"{span.parent.span_id:016x}" if span.parent else "",
            "links": [f"{link.context.trace_id:032x}" for link in span.links],
            "start_time": span.start_time,
            "end_time": span.end_time,
            "status": span.status.status_code.name,
            "attributes": dict(span.attributes or {}),
        }
