"""The mesh that is struck: real processes, quick leases, and a warden that restarts what died."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psycopg
from jobmesh.v1 import failpoint_service_pb2 as pb
from jobmesh.v1 import scaler_service_pb2, worker_service_pb2
from jobmesh.v1.failpoint_service_pb2_grpc import FailpointServiceStub
from jobmesh.v1.pool_pb2 import PoolSpec, ProcessDriver
from jobmesh.v1.scaler_service_pb2_grpc import ScalerServiceStub
from localmesh.errors import LocalError
from localmesh.harness import RunningMesh, running_mesh
from localmesh.processes import Process
from localmesh.service import Service

from services.mesh.lease import Keys
from services.mesh.lease.etcd import EtcdClient, EtcdRegistry, EtcdSettings
from services.mesh.testing.waiting import eventually
from tests.chaos.crew import APPS, Crew
from tests.chaos.dump import Objects
from tests.chaos.orders import POOLED

#: Short, so that a death is noticed soon; long enough for a machine that has other things to do.
LEASE_SECONDS = 3
#: Twice the lease: whoever stood still for so long has lost it.
PAUSE_SECONDS = 2 * LEASE_SECONDS
PATIENCE = 40.0
ORDERS, MUTANT = "JOBMESH_FAILPOINTS", "JOBMESH_MUTANT"
_WARDEN_SECONDS = 0.1
_TABLES = "jobs, event_rows, queue, in_flight, commits, job_terms, schedules"
_TABLES += ", waits, blocked, ended_parents, unique_keys"

QUICK: Mapping[str, str] = {
    "JOBMESH_FAILPOINTS_ENABLED": "on",
    "JOBMESH_LEASE_SECONDS": str(LEASE_SECONDS),
    "JOBMESH_LEASE_MARGIN_SECONDS": "1",
    "JOBMESH_TICK_SECONDS": "0.5",
    "JOBMESH_LOOK_SECONDS": "0.5",
    "JOBMESH_SLOT_SECONDS": "1",
    "JOBMESH_PARK_SECONDS": "1",
    "JOBMESH_GRAB_SECONDS": "3",
    "JOBMESH_DISPATCH_SECONDS": "2",
    "JOBMESH_SWEEP_SECONDS": "0.5",
    "JOBMESH_RESCUE_SECONDS": "1",
    "JOBMESH_EXPIRE_SECONDS": "0.5",
    "JOBMESH_REREAD_SECONDS": "0.5",
    "JOBMESH_HEARTBEAT_SECONDS": "2",
    "JOBMESH_DRAIN_SECONDS": "3",
    "JOBMESH_RECONCILE_SECONDS": "0.5",
    "JOBMESH_SETTLE_SECONDS": "0",
    "JOBMESH_PURGE_SECONDS": "1",
}
#: Every input and output through the object store: those paths have failpoints too.
ALL_LARGE: Mapping[str, str] = {"JOBMESH_INLINE_BYTES": "16"}


class Rig:
    """A mesh, its workers, and hands to strike them with."""

    def __init__(self, mesh: RunningMesh, crew: StruckCrew, journal: Path) -> None:
        self.mesh, self.crew = mesh, crew
        self._journal = journal
        #: Where the handlers of the present load write what they do.
        self.ledger = journal
        self._stopped = threading.Event()
        #: Who was told to end, and may take its time over it.
        self._leaving: Process | None = None
        #: Held by whoever stops and starts units, so that the warden does not do so meanwhile.
        self._hands = threading.RLock()
        self._warden = threading.Thread(target=self._watch, name="warden")

    # --- the warden

    def _watch(self) -> None:
        """Start again what died, as an init system would."""
        while not self._stopped.wait(_WARDEN_SECONDS):
            with self._hands:
                self.revive()

    def revive(self) -> None:
        for name in self.dead():
            with suppress(LocalError):
                self.mesh.start(name)
        for name in self.crew.names:
            if not self.crew.lives(name):
                self.crew.start(name)

    def dead(self) -> list[str]:
        return [unit.name for unit in self._services() if not self._lives(unit.name)]

    def _lives(self, name: str) -> bool:
        return self.mesh.process(name).alive()

    def _services(self) -> list[Service]:
        return [unit for unit in self.mesh.plan.services if isinstance(unit, Service)]

    async def healed(self) -> None:
        """Return when every unit and every worker is there and ready."""

        def whole() -> bool:
            with self._hands:
                if self.dead() or not all(map(self.crew.lives, self.crew.names)):
                    return False
                if self._leaving is not None and self._leaving.alive():
                    return False
            try:
                self.mesh.wait_ready(seconds=0.5)
                self.crew.wait_ready(0.1)
            except (LocalError, TimeoutError):
                return False
            return True

        await eventually(lambda: asyncio.to_thread(whole), PATIENCE)

    # --- striking

    async def arm(self, service: str, name: str, order: str) -> None:
        """Arm a place in every process of a service."""
        for target in await self.targets(service):
            async with grpc.aio.insecure_channel(target) as channel:
                stub: Any = FailpointServiceStub(channel)
                try:
                    await stub.Arm(pb.ArmRequest(name=name, order=order), timeout=5)
                except grpc.aio.AioRpcError as error:
                    # A worker that was killed stays in the list for as long as its lease.
                    if service != "worker" or error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise

    async def disarm(self) -> None:
        """Forget all orders everywhere."""
        for service in ("enqueue", "orchestrator", "scheduler", "worker", "scaler"):
            for target in await self.targets(service):
                async with grpc.aio.insecure_channel(target) as channel:
                    stub: Any = FailpointServiceStub(channel)
                    with suppress(grpc.RpcError):
                        await stub.Disarm(pb.DisarmRequest(), timeout=5)

    async def targets(self, service: str) -> list[str]:
        """Where the processes of a service answer."""
        if service != "worker":
            return self.mesh.targets(service)
        client = EtcdClient(EtcdSettings((self.mesh.etcd_endpoint,)))
        try:
            keys = Keys("/jobmesh")
            entries = await EtcdRegistry(client).entries(keys.workers)
        finally:
            await client.close()
        infos = [worker_service_pb2.WorkerInfo.FromString(entry.value) for entry in entries]
        return [info.address for info in infos if not info.draining]

    def reborn(self, service: str, name: str, order: str) -> None:
        """Start the processes of a service anew, with a place armed from the beginning."""
        with self._hands:
            if service == "worker":
                victim = self.crew.names[0]
                self.crew.kill(victim)
                self.crew.start(victim, **{ORDERS: f"{name}={order}"})
                return
            environment = self.mesh.plan.settings.environment
            assert isinstance(environment, dict)
            environment[ORDERS] = f"{name}={order}"
            try:
                for unit in self._of(service):
                    self.mesh.kill(unit)
                    with suppress(LocalError):  # it was told to die at once
                        self.mesh.start(unit)
            finally:
                del environment[ORDERS]

    def become(self, services: tuple[str, ...], mutant: str) -> None:
        """Start the processes of services anew as a mutant; an empty name makes them whole."""
        environment = self.mesh.plan.settings.environment
        assert isinstance(environment, dict)
        with self._hands:
            # It stays: what dies and is started again meanwhile shall be broken as well.
            for told in (environment, self.crew.told):
                told.pop(MUTANT, None)
                told.update({MUTANT: mutant} if mutant else {})
            for service in services:
                for unit in self._of(service):
                    self.mesh.kill(unit)
                    self.mesh.start(unit)
            for name in self.crew.names if "worker" in services else ():
                self.crew.kill(name)
                self.crew.start(name)
        self.crew.wait_ready()

    def told_to_end(self, service: str) -> None:
        """SIGTERM for one process of a service."""
        with self._hands:
            if service == "worker":
                self._leaving = Process.of(self.crew.pid(self.crew.names[0]))
                self.crew.terminate(self.crew.names[0])
            else:
                unit = self._of(service)[0]
                self._leaving = self.mesh.process(unit)
                self.mesh.kill(unit, signal.SIGTERM)

    def _of(self, service: str) -> list[str]:
        return [unit.name for unit in self._services() if unit.role == service]

    def fired(self, name: str, since: float) -> int:
        """How often a place has acted since a moment."""
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        told = [json.loads(line) for line in lines]
        return sum(line["name"] == name and line["time"] >= since for line in told)

    # --- between cells

    def forget_jobs(self) -> None:
        """Empty the shards and the object store: the next cell's dump shall hold its own only. Its
        time would grow with each cell else, for every output is read.
        """
        for dsn in self.mesh.shard_dsns.values():
            with psycopg.connect(dsn, autocommit=True) as connection:
                for _ in range(20):
                    # Services look at the tables all the time, in an order of their own.
                    with suppress(psycopg.errors.DeadlockDetected):
                        connection.execute(f"TRUNCATE {_TABLES}".encode())
                        break
        with closing(Objects(self.mesh.environment())) as objects:
            objects.forget()

    async def pool(self, desired: int) -> None:
        """Have the Scaler keep so many workers of a pool of its own, and wait until it does."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                await self._hold(desired)
                await eventually(lambda: self._pooled() == desired, 5.0)
                return
            except (grpc.RpcError, TimeoutError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _hold(self, desired: int) -> None:
        async with grpc.aio.insecure_channel(self.mesh.scaler_target) as channel:
            stub: Any = ScalerServiceStub(channel)
            await stub.CreatePool(scaler_service_pb2.CreatePoolRequest(spec=_POOL), timeout=5)
            hold = scaler_service_pb2.SetDesiredRequest(type=POOLED, desired=desired)
            await stub.SetDesired(hold, timeout=5)

    def _pooled(self) -> int:
        return sum(POOLED in worker.type.split(",") for worker in self.mesh.workers())

    # --- life

    def __enter__(self) -> Rig:
        self._warden.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._warden.join()


_POOL = PoolSpec(type=POOLED, max_workers=1, process=ProcessDriver(app="pooled_app"))


@contextmanager
def struck_mesh(
    home: Path, environment: Mapping[str, str] | None = None, workers: int = 2
) -> Iterator[Rig]:
    """A mesh that may be struck, with its workers, for the length of the block."""
    journal = home / "failpoints.jsonl"
    told = {**QUICK, "JOBMESH_FAILPOINTS_JOURNAL": str(journal), **(environment or {})}
    told["PYTHONPATH"] = _with_apps()
    with (
        running_mesh(home / "mesh", shards=2, schedulers=2, environment=told) as mesh,
        StruckCrew(mesh, workers) as crew,
        Rig(mesh, crew, journal) as rig,
    ):
        yield rig


def _with_apps() -> str:
    import os

    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(APPS), str(HERE)]))


HERE = Path(__file__).with_name("apps")


class StruckCrew(Crew):
    """A crew whose workers may be told to end without anybody waiting for it."""

    @property
    def told(self) -> dict[str, str]:
        """What its workers are told beyond what all processes of the mesh are."""
        return self._extra

    def terminate(self, name: str) -> None:
        self._children[name].terminate()
