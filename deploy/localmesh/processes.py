"""Processes that outlive the command that started them, and are never confused with others.

A process is known by its pid *and* its start time, so that a pid the kernel gave to someone else is
never signalled. Signals and waits go through pidfds: no polling, and no difference between children
and processes of an earlier command. Every process carries the folder of its mesh in its environment
(`HOME_TAG`), so that strays can be found even when the state file is gone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from localmesh.errors import LocalError, explained

HOME_TAG = "JOBMESH_LOCAL_HOME"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

StopLadder = Sequence[tuple[signal.Signals, float]]
"""Signals to send in turn, each with the seconds to wait for the end."""

TERM_THEN_KILL: StopLadder = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged account a server runs under when we are root."""

    uid: int
    gid: int


class Identity(TypedDict, total=False):
    """Arguments of subprocess.Popen."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `env` is the whole environment, apart from the tag of the mesh."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    account: Account | None = None
    timer_slack: float = 0.0
    """How many seconds late its timers may be, so that one wake-up serves several; 0: hardly. What
    comes over the network or from a disk is never late."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far, and since when it runs."""

    cpu_seconds: float
    memory_bytes: int
    private_bytes: int
    """The part of the memory it shares with nobody."""
    uptime_seconds: float


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine. `start_time` is in clock ticks since boot (stat, field 22)."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that now has this pid, or None if there is none."""
        fields = _stat(pid)
        return cls(pid, int(fields[19])) if fields else None

    def alive(self) -> bool:
        """Whether it still runs. A zombie does not."""
        _reap(self.pid)
        fields = _stat(self.pid)
        return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == self.start_time

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is gone."""
        with self._handle() as handle:
            if handle is None:
                return False
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return False
            except PermissionError as error:
                raise LocalError(
                    f"process {self.pid} belongs to another user", "Run the command as that user"
                ) from error
        return True

    def wait(self, timeout: float) -> bool:
        """Block until it has ended; False if it has not within `timeout` seconds."""
        with self._handle() as handle:
            if handle is not None:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                if not poll.poll(timeout * 1000):
                    return False
        _reap(self.pid)
        return True

    def stop(self, ladder: StopLadder = TERM_THEN_KILL) -> bool:
        """Signal down the ladder until it has ended; True if the first signal was enough."""
        for step, (number, seconds) in enumerate(ladder):
            gone = not self.signal(number)
            self.signal(signal.SIGCONT)  # a frozen process hears nothing but a kill
            if gone or self.wait(seconds):
                _reap(self.pid)
                return step == 0
        raise LocalError(f"process {self.pid} does not end, not even by {ladder[-1][0].name}")

    def usage(self) -> Usage | None:
        """CPU, memory and age from /proc; None if it is gone."""
        fields = _stat(self.pid)
        if not fields or int(fields[19]) != self.start_time:
            return None
        return Usage(
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
            memory_bytes=int(fields[21]) * _PAGE,
            private_bytes=_private_bytes(self.pid),
            uptime_seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_time / _TICKS,
        )

    @contextmanager
    def _handle(self) -> Iterator[int | None]:
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            # The pidfd is held now, so the pid cannot be reused any more: this check decides.
            current = Process.of(self.pid)
            yield handle if current == self else None
        finally:
            os.close(handle)


def spawn(
    command: Command, log: Path, *, home: Path, death_signal: signal.Signals | None = None
) -> Process:
    """Start a process in a session of its own, its output appended to `log`.

    With `death_signal` the kernel sends it that signal when the calling *thread* ends: call from a
    thread that lives as long as the process should.
    """
    argv = list(command.argv)
    if death_signal is not None:
        argv = [tool("setpriv"), "--pdeathsig", death_signal.name.removeprefix("SIG"), "--", *argv]
    with explained(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output, _slack(command.timer_slack):
            child = subprocess.Popen(
                argv,
                cwd=command.cwd,
                env={**command.env, HOME_TAG: str(home)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **identity(command.account),
            )
    # From here on the process is known by pid alone (it may outlive us); Popen must not complain
    # that it still runs.
    child.returncode = 0
    return Process.of(child.pid) or Process(child.pid, 0)


@contextmanager
def _slack(seconds: float) -> Iterator[None]:
    """What this thread starts meanwhile inherits the slack, with all of its threads."""
    own = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
    if seconds:
        own.write_text(str(round(seconds * 1e9)))
    try:
        yield
    finally:
        if seconds:
            own.write_text("0")  # the default


def tagged(home: Path) -> list[Process]:
    """Every process that was started for the mesh in `home`, by us or by one of its services."""
    mark = f"{HOME_TAG}={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            carries = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # ended, or belongs to another user
        process = Process.of(int(entry.name)) if carries else None
        if process is not None and process.alive():
            found.append(process)
    return found


def descendants(ancestors: set[Process]) -> set[Process]:
    """The children of these processes, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else []
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[Process] = set()
    pending = [process.pid for process in ancestors]
    while pending:
        for pid in parents.get(pending.pop(), []):
            pending.append(pid)
            child = Process.of(pid)
            if child is not None:
                found.add(child)
    return found


def tool(name: str) -> str:
    """The path of a program of the base system."""
    path = shutil.which(name)
    if path is None:
        raise LocalError(f"the program {name} was not found", "Install the package util-linux")
    return path


def identity(account: Account | None) -> Identity:
    """The arguments for subprocess that switch to an account; none to stay who we are."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the program's name; empty if there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _private_bytes(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _reap(pid: int) -> None:
    """Collect the exit status if the process was our child and has ended."""
    with suppress(ChildProcessError):  # another command's child, or already collected
        os.waitpid(pid, os.WNOHANG)
