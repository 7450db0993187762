"""What is done at a place that was told to act."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from services.mesh.failpoints.order import Action, Order
from services.mesh.failpoints.registry import Point

log = logging.getLogger(__name__)


class DefectError(Exception):
    """What `raise:defect` raises: nobody catches this by name."""


class Actor:
    """Carries orders out, and first writes down that it does."""

    def __init__(self, instance: str, journal: Path | None = None) -> None:
        self._instance, self._journal = instance, journal

    async def act(self, point: Point, order: Order) -> bool:
        """Within a coroutine. True: what passes here is to be dropped."""
        if order.action is Action.DELAY:
            self._tell(point, order)
            await asyncio.sleep(order.seconds)
            return False
        return self.act_now(point, order)

    def act_now(self, point: Point, order: Order) -> bool:
        """Within a plain function, where a delay can only be a pause."""
        self._tell(point, order)
        match order.action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.PAUSE | Action.DELAY:
                stand_still(order.seconds)
            case Action.RAISE:
                raise DefectError(point.place.name) if order.defect else point.place.error()
            case Action.DROP:
                return True
        return False

    def _tell(self, point: Point, order: Order) -> None:
        name, text = point.place.name, str(order)
        extra = {"action": "failpoint_fired", "failpoint": name, "order": text, "hits": point.hits}
        log.warning("failpoint", extra=extra)
        if self._journal is not None:
            line = {"time": time.time(), "instance": self._instance, "pid": os.getpid()}
            with self._journal.open("a") as journal:
                journal.write(json.dumps({**line, "name": name, "order": text}) + "\n")


def stand_still(seconds: float) -> None:
    """Stop this process as a whole for so long, as a machine that hangs would.

    Somebody else has to wake it up. That one inherits nothing, and ends by itself.
    """
    shell = shutil.which("sh") or "/bin/sh"
    pid = os.getpid()
    waker = subprocess.Popen(
        [shell, "-c", f"sleep {seconds:.3f}; kill -CONT {pid}"],
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.kill(pid, signal.SIGSTOP)
    waker.wait()
