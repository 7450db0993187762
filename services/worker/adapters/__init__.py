"""The worker's ports, filled: NATS, etcd, S3, the Orchestrator's stub, processes, telemetry."""
