"""Brings inputs to handlers and takes outputs away.

Trouble with a store is nobody's fault: the attempt is given back and costs the job nothing. An
input that is gone, or not what was recorded, is the job's: no later attempt can go better.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from services.mesh.clock import Clock
from services.mesh.errors import DataLoss, MeshError, NotFound
from services.mesh.jobs.logs import LogLine
from services.mesh.jobs.model import ObjectRef, Payload
from services.mesh.runtime import Backoff, in_own_thread
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import (
    EMPTY_SUCCESS,
    Ending,
    Failed,
    HandedBack,
    Succeeded,
    failure,
    unreadable_input,
)
from services.worker.ports import Objects, Returned

log = logging.getLogger(__name__)

#: The contract's bound on inline bytes; beyond our own threshold outputs become objects.
INLINE_BYTES = 16 * 1024
STORE_AWAY_SECONDS = 5.0
#: How long the ending of an attempt waits for its log to be kept.
LOG_SECONDS = 5.0
PAUSES = Backoff(first=0.2, ceiling=3.0)
#: The file that a handler returned is gone, or not to be read: the handler's doing.
_UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)


class Courier:
    """Reads inputs and stores outputs of attempts."""

    def __init__(
        self,
        objects: Objects,
        spool: Path,
        clock: Clock,
        *,
        inline_bytes: int = INLINE_BYTES,
        patience: float = 30.0,
    ) -> None:
        self._objects = objects
        self._spool = spool
        self._clock = clock
        self._inline_bytes = inline_bytes
        #: How long an output is offered to a store that is away. The handler has run: that is
        #: worth some waiting.
        self._patience = patience

    # --- inputs

    async def fetch(
        self, attempt: Attempt, ref: ObjectRef, *, as_file: bool
    ) -> bytes | Path | Failed | HandedBack:
        """The input of an attempt whose input is an object, or how the attempt ends without it."""
        try:
            if as_file:
                return await self._download(attempt, ref)
            return await self._objects.read(ref)
        except (NotFound, DataLoss) as error:
            return unreadable_input("InputUnreadable", str(error))
        except (MeshError, OSError) as error:
            extra = {"action": "input_unavailable", "job_id": str(attempt.job_id)}
            log.warning("cannot read the input: %s", error, extra=extra)
            return HandedBack("input store away", STORE_AWAY_SECONDS)

    async def _download(self, attempt: Attempt, ref: ObjectRef) -> Path:
        file = self._file(attempt)
        await self._objects.download(ref, file)
        return file

    async def clear(self, attempt: Attempt) -> None:
        """Remove what was downloaded for the attempt."""
        with suppress(OSError):
            await in_own_thread(self._file(attempt).unlink, missing_ok=True)

    def _file(self, attempt: Attempt) -> Path:
        return self._spool / f"{attempt.job_id}-{attempt.fence}.input"

    # --- outputs

    async def deliver(self, attempt: Attempt, returned: Returned) -> Ending:
        """Store what a handler returned, and say how the attempt ended by that."""
        content = returned.content
        try:
            if isinstance(content, bytes) and len(content) <= self._inline_bytes:
                return _inline(content, returned.content_type)
            return await self._store(attempt, content, returned.content_type)
        finally:
            if returned.release is not None:
                await returned.release()

    async def _store(self, attempt: Attempt, content: bytes | Path, content_type: str) -> Ending:
        deadline = self._clock.monotonic() + self._patience
        failures = 0
        while True:
            try:
                return Succeeded(await self._objects.store(attempt, content, content_type))
            except _UNREADABLE as error:
                return Failed(failure("OutputUnreadable", str(error)))
            except (MeshError, OSError) as error:
                failures += 1
                pause = PAUSES.delay(failures)
                extra = {"action": "output_unavailable", "job_id": str(attempt.job_id)}
                log.warning("cannot store the output: %s", error, extra=extra)
                if self._clock.monotonic() + pause > deadline:
                    return HandedBack("output store away", STORE_AWAY_SECONDS)
            await asyncio.sleep(pause)

    # --- logs

    async def keep_log(
        self, attempt: Attempt, lines: Sequence[LogLine], *, was_kept: bool = False
    ) -> None:
        """Keep the lines of an attempt, if that is soon done: no job waits long for its log.

        What `was_kept` while it ran is removed then, and else is what there is of its log.
        """
        try:
            async with asyncio.timeout(LOG_SECONDS):
                await self._objects.keep_log(attempt, lines)
                if was_kept:
                    await self._objects.forget_log_so_far(attempt)
        except (MeshError, OSError, TimeoutError) as error:
            extra = {"action": "log_lost", "job_id": str(attempt.job_id), "count": len(lines)}
            log.warning("cannot keep the log of an attempt: %s", error, extra=extra)

    async def keep_log_so_far(self, attempt: Attempt, lines: Sequence[LogLine]) -> None:
        """Keep the lines of an attempt that runs; if that fails, there is another time."""
        try:
            async with asyncio.timeout(LOG_SECONDS):
                await self._objects.keep_log_so_far(attempt, lines)
        except (MeshError, OSError, TimeoutError) as error:
            extra = {"action": "log_not_kept", "job_id": str(attempt.job_id), "count": len(lines)}
            log.info("cannot keep the log of a running attempt: %s", error, extra=extra)


def _inline(content: bytes, content_type: str) -> Succeeded:
    if not content and not content_type:
        return EMPTY_SUCCESS
    return Succeeded(Payload.inline(content, content_type))
