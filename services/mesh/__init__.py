"""The chassis that the five services share. It is no service and imports none.

    errors      the one tree of errors; pure, so that domain code raises from it
    config      flags and environment into one frozen dataclass
    clock       time as a parameter
    jobs        the shared model: ids, states, retry. Pure
    runtime     how a process starts, serves, drains and ends. Plain asyncio
    telemetry   logs, metrics, spans
    rpc         gRPC server and channel
    store · bus · lease · blob   ports to Postgres, NATS, etcd and S3, with their adapters
    testing     fakes and conformance suites; for tests only

Direction of imports: `jobs`, `errors` and `clock` import nothing of ours; `config` and `telemetry`
only those; `runtime` these; `rpc` and the adapters all of them. `.importlinter` enforces it.

The composition root of a service is the only place that sees everything. It looks like this:

    # services/scheduler/main.py
    import sys

    from jobmesh.v1 import orchestrator_service_pb2 as orchestrator_pb2
    from jobmesh.v1.orchestrator_service_pb2_grpc import OrchestratorServiceStub
    from jobmesh.v1.scheduler_service_pb2_grpc import add_SchedulerServiceServicer_to_server

    from services.mesh.rpc import Server, TlsFiles, open_channel
    from services.mesh.runtime import Hooks, Process, run_service
    from services.scheduler.config import SchedulerConfig      # (NatsConfig, …, ServiceConfig)

    async def build(config: SchedulerConfig, process: Process) -> None:
        # Adapters first: what is added first starts first and stops last.
        nats_up = process.readiness.require("nats")
        bus = NatsBus(config.nats_url, config.nats_prefix, on_up=nats_up.up, on_down=nats_up.down)
        process.add(Hooks("nats", start=bus.connect, stop=bus.close))
        channel = open_channel(
            config.orchestrator_target,
            peer="orchestrator",
            services=[orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"]],
            tracing=process.tracing,
            tls=TlsFiles.from_config(config),
        )
        process.add(channel)
        orchestrator = OrchestratorPeer(OrchestratorServiceStub(channel))

        # Use cases and loops: each `Loop` is a component, its passes are counted and timed.
        sweeper = process.add(Sweeper(orchestrator, interval=config.sweep_seconds))
        claimer = process.add(Claimer(bus, process.clock, process.metrics, process.tracing))

        # The server last: nobody calls before all else works, and it stops before all else does.
        server = Server.from_config(process, config)
        servicer = SchedulerServicer(claimer, sweeper, process.drain)
        server.add(add_SchedulerServiceServicer_to_server, servicer)
        process.add(server)

    def main() -> None:
        sys.exit(run_service("scheduler", SchedulerConfig, build))

A servicer unpacks, calls one use case and packs; it raises and never aborts. A long stream ends
when the process drains:

    class SchedulerServicer(SchedulerServiceServicer):
        async def Tick(self, request, context):                       # raises MeshError as it likes
            return convert.tick_response(await self._sweeper.run_once())

        async def WatchSomething(self, request, context):
            async for change in self._drain.cut(self._changes.follow()):
                yield convert.watch_response(change)
"""
