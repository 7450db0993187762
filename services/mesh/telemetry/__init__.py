"""What a process tells about itself: log lines, metrics, spans.

`logs`     one line per event, JSON or console, each with a stable `action` key. Configured once.
`metrics`  a Prometheus registry per process, served over HTTP at `metrics_listen`.
`tracing`  spans by W3C trace context, which travels as a plain `traceparent` string through gRPC
           metadata, NATS headers and the job row. Off unless an exporter is configured, and then
           free: the SDK is not even imported.

Metrics and tracing are passed in by constructor (`process.metrics`, `process.tracing`); nothing
here is global but the context variable of the current span and the standard library's log tree.
"""
