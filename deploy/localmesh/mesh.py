"""The local mesh of a folder: bring it up, take it down, remove it.

There is no supervisor: every process is started in a session of its own, survives the command that
started it, and is found again through the state file. So `up` is also the repair: it keeps what
runs and is ready, restarts what has other settings now, and starts what is missing. What a killed
command or a lost state file left running is found by the mark in its environment.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from localmesh.errors import LocalError, explained
from localmesh.launch import Running, require_space, start_units
from localmesh.plan import Plan, Reroute, direct
from localmesh.ports import require_free
from localmesh.processes import Process, descendants, tagged
from localmesh.progress import Progress, Teller, silent
from localmesh.service import (
    GRACE_SECONDS,
    Service,
    drain_ladder,
    hand_back_ladder,
    limit_drain,
)
from localmesh.settings import MeshSettings
from localmesh.state import Record, State, StateFile, WorkerRecord, locked, read_workers
from localmesh.stopping import Doomed, stop_all
from localmesh.unit import Unit

SERVER_ROLE = "server"
# The Scaler first, or it would start new workers; those whom the others need last.
STOP_ORDER = ("scaler", "worker", "scheduler", "enqueue", "orchestrator")
_CLIENT_VARIABLES = ("_HOME", "_ADDRESS", "_NAMESPACE", "_DEBUG")
_STRAY_SECONDS = 3.0
_STRAY_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class UpReport:
    """What `up` did, and where everything is now."""

    plan: Plan
    started: tuple[str, ...]
    kept: tuple[str, ...]
    seconds: float


def up(home: Path, settings: MeshSettings, progress: Progress = silent) -> UpReport:
    """Bring the mesh in `home` to what the settings say; quick if it already is."""
    return LocalMesh(home, settings, progress).up()


def down(home: Path, progress: Progress = silent, grace: float = GRACE_SECONDS) -> None:
    """Stop every process of the mesh in `home`; data stays.

    Jobs may run on for `grace` seconds, then their workers hand them back. A service or worker that
    does not end is killed.
    """
    LocalMesh.saved(home, progress).down(grace)


def clean(home: Path, progress: Progress = silent, grace: float = GRACE_SECONDS) -> None:
    """Stop the mesh in `home` and remove all its data."""
    LocalMesh.saved(home, progress).clean(grace)


class LocalMesh:
    """The mesh in one folder. With `die_with_caller` its processes end with the calling thread."""

    def __init__(
        self,
        home: Path,
        settings: MeshSettings,
        progress: Progress = silent,
        *,
        die_with_caller: bool = False,
        reroute: Reroute = direct,
    ) -> None:
        self.home = home.resolve()
        self.plan = Plan(self.home, settings, reroute)
        self._die_with_caller = die_with_caller
        self._teller = Teller(progress)
        self._file = StateFile(self.home)
        self._state = State(settings)
        # A test may start and stop several units at once, each from a thread of its own.
        self._guard = threading.Lock()

    @classmethod
    def saved(cls, home: Path, progress: Progress = silent) -> LocalMesh:
        """The mesh as the last `up` in this folder left it."""
        return cls(home, StateFile(home).load().settings or MeshSettings(), progress)

    def up(self) -> UpReport:
        """Start what is missing and wait until everything is ready."""
        require_space(self.home)
        with locked(self.home):
            saved = self._file.load()
            self._require_same_shards(saved.settings)
            self._state = State(self.plan.settings, saved.processes)
            self._end_unwanted()
            self._require_ports()
            with explained(self.plan.workers):
                self.plan.workers.mkdir(exist_ok=True)
            return self._raise_stages()

    def down(self, grace: float = GRACE_SECONDS) -> None:
        """Stop everything in order; raises a LocalError if something survives."""
        if self.home.exists():
            with locked(self.home):
                self._lower_stages(grace)

    def clean(self, grace: float = GRACE_SECONDS) -> None:
        """Stop everything and remove what the mesh put into its folder."""
        if not self.home.exists():
            return
        with locked(self.home):
            self._lower_stages(grace)
            for name in ("data", "logs", "workers"):
                shutil.rmtree(self.home / name, ignore_errors=True)
            for name in ("state.json", "lock"):
                (self.home / name).unlink(missing_ok=True)
        if not any(self.home.iterdir()):
            self.home.rmdir()

    # --- single units ---

    def start(self, units: Sequence[Unit]) -> list[Running]:
        """Start these units now, and wait until they are ready."""
        return start_units(
            units,
            self.home,
            logs=self.plan.logs,
            die_with_caller=self._die_with_caller,
            on_started=self._remember,
            on_ready=lambda one: self._teller.tell(one.unit.name, one.unit.kind, "ready"),
        )

    def stop(self, names: Iterable[str], grace: float = GRACE_SECONDS) -> None:
        """Stop these units, as far as they run."""
        with self._guard:
            alive = self._state.alive()
        self._end(self._doomed(name, alive[name], grace) for name in names if name in alive)

    def process(self, name: str) -> Process | None:
        """The process that was last started for a unit."""
        record = self._state.processes.get(name)
        return record.process if record else None

    # --- up ---

    def _require_same_shards(self, saved: MeshSettings | None) -> None:
        """Jobs stay in the shards that hold them: one that is left out takes its jobs along, and
        one that is added gets none.
        """
        wanted = self.plan.settings
        there = len(list((self.home / "data").glob("shard-*")))
        if wanted.postgres_urls or not there:
            return
        if saved is not None and not saved.postgres_urls:
            had = saved.shards
        else:
            had = max(there, wanted.shards)  # fewer may be what a failed `up` has left behind
        if had != wanted.shards:
            raise LocalError(
                f"the mesh in {self.home} has {had} shards, not {wanted.shards},"
                " and their number cannot be changed yet",
                f"Say --shards {had} (or JOBMESH_LOCAL_SHARDS={had}), or remove the mesh with all"
                " its data (make clean)",
            )

    def _require_ports(self) -> None:
        """A port that is taken is told before servers are started in vain. While some of the mesh
        runs, its units may have to end first: then each stage looks for itself.
        """
        if not self._state.alive():
            for unit in self.plan.units.values():
                require_free(unit.name, unit.ports.values())

    def _raise_stages(self) -> UpReport:
        started: list[str] = []
        kept: list[str] = []
        try:
            for stage in (self.plan.servers, self.plan.services):
                current, missing = self._sort_out(stage)
                started += [one.unit.name for one in self.start(missing)]
                kept += self._await(current)
        except BaseException:
            # All or nothing: what this call started goes again, what ran before stays.
            self.stop(reversed(started))
            raise
        return UpReport(self.plan, tuple(started), tuple(kept), self._teller.seconds)

    def _sort_out(self, stage: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
        """Units that run as they should, and units to start; ends those with other settings."""
        alive = self._state.alive()
        current = [
            unit
            for unit in stage
            if unit.name in alive and alive[unit.name].fingerprint == fingerprint(unit)
        ]
        missing = [unit for unit in stage if unit not in current]
        self.stop(unit.name for unit in missing)
        return current, missing

    def _await(self, units: Sequence[Unit]) -> list[str]:
        """Wait until units that already run are ready."""
        with ThreadPoolExecutor(max(1, len(units)), thread_name_prefix="localmesh") as threads:
            waits = {
                threads.submit(self._running(unit).wait_ready, unit.probe): unit for unit in units
            }
            for future in as_completed(waits):
                future.result()
                self._teller.tell(waits[future].name, waits[future].kind, "kept")
        return [unit.name for unit in units]

    def _running(self, unit: Unit) -> Running:
        process = self._state.processes[unit.name].process
        return Running(unit, process, self.plan.logs / f"{unit.name}.log")

    def _remember(self, running: Running) -> None:
        unit, process = running.unit, running.process
        role = unit.role if isinstance(unit, Service) else SERVER_ROLE
        record = Record(process.pid, process.start_time, role, fingerprint(unit))
        with self._guard:
            self._state.processes[unit.name] = record
            self._file.save(self._state)
        self._teller.tell(unit.name, unit.kind, "starting")

    def _end_unwanted(self) -> None:
        """End what an earlier mesh in this folder left behind and this one has no place for."""
        self.stop([name for name in self._state.alive() if name not in self.plan.units])
        known = {record.process for record in self._state.alive().values()}
        known |= {worker.process for worker in read_workers(self.plan.workers)}
        family = known | descendants(known)
        self._end(_stray(process) for process in tagged(self.home) if process not in family)

    # --- down ---

    def _lower_stages(self, grace: float) -> None:
        self._state = self._file.load()
        for role in STOP_ORDER:
            if role == "worker":
                self._end(_worker(worker, grace) for worker in read_workers(self.plan.workers))
            else:
                self.stop(self._with_role(role), grace)
        self.stop([n for n, r in self._state.alive().items() if r.role != SERVER_ROLE], grace)
        self.stop(self._with_role(SERVER_ROLE), grace)
        self._end_strays()

    def _with_role(self, role: str) -> list[str]:
        return [name for name, record in self._state.alive().items() if record.role == role]

    def _end_strays(self) -> None:
        strays: list[Process] = []
        for _ in range(_STRAY_ROUNDS):
            strays = tagged(self.home)
            if not strays:
                return
            self._end(_stray(process) for process in strays)
        pids = ", ".join(str(process.pid) for process in strays)
        raise LocalError(f"these processes of the mesh keep coming back: {pids}")

    def _end(self, doomed: Iterable[Doomed]) -> None:
        """Stop these and forget them."""
        everyone = list(doomed)
        stop_all(everyone, self._teller)
        with self._guard:
            for one in everyone:
                self._state.processes.pop(one.name, None)
            if everyone:
                self._file.save(self._state)

    def _doomed(self, name: str, record: Record, grace: float) -> Doomed:
        unit = self.plan.units.get(name)
        if record.role != SERVER_ROLE:
            return Doomed(name, "service", record.process, drain_ladder(grace))
        if unit is None:
            return Doomed(name, "server", record.process, drain_ladder(grace))
        return Doomed(name, "server", record.process, unit.stop_ladder, unit.sweep)


def fingerprint(unit: Unit) -> str:
    """What a unit was told; another value means that a running one must be started anew.

    Where the command was called from, and what only concerns clients, makes no difference.
    """
    command = unit.command()
    told = {
        name: value
        for name, value in command.env.items()
        if name.startswith("JOBMESH_") and not name.endswith(_CLIENT_VARIABLES)
    }
    text = json.dumps([list(command.argv), told], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _worker(worker: WorkerRecord, grace: float) -> Doomed:
    def sweep() -> None:
        worker.file.unlink(missing_ok=True)

    def limit() -> None:
        if worker.address:
            limit_drain(worker.address, grace)

    ladder = hand_back_ladder(grace)
    return Doomed(worker.worker_id, "worker", worker.process, ladder, sweep, limit)


def _stray(process: Process) -> Doomed:
    return Doomed(f"pid {process.pid}", "service", process, drain_ladder(_STRAY_SECONDS))
