"""What a handler may know, say and ask for about the attempt it is.

The worker makes one Context per attempt and passes what connects it to the mesh as plain callables
(`Hooks`), so that the same class serves in the worker's event loop, in an executor process and in a
test. What a handler says wrongly (a progress that is no number, a checkpoint that is too large) is
refused here, with a ValueError or TypeError in the handler, before it reaches anybody else.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobmesh.codec import BYTES_TYPE, JSON_TYPE, from_json, to_json
from jobmesh.errors import AttemptCancelled

log = logging.getLogger("jobmesh.handler")

#: The contract's bounds.
MAX_MESSAGE_CHARACTERS = 1000
MAX_CHECKPOINT_BYTES = 64 * 1024
MAX_EXTENSION_SECONDS = 30 * 24 * 3600.0

#: Takes (done, total, message); total is 0 when unknown.
ProgressHook = Callable[[float, float, str], None]
#: Takes the bytes and their media type; what it returns, if anything, is to be awaited.
CheckpointHook = Callable[[bytes, str], Awaitable[None] | None]


def ignore_progress(done: float, total: float, message: str) -> None:
    """The hook of an attempt nobody follows."""


def ignore_heartbeat() -> None:
    """The hook of an attempt nobody waits for."""


def ignore_extension(seconds: float) -> None:
    """The hook of an attempt without a limit."""


def ignore_checkpoint(data: bytes, content_type: str) -> None:
    """The hook of an attempt that nobody will go on from."""


def never_cancelled() -> bool:
    """The flag of an attempt nobody can cancel."""
    return False


class Done(Awaitable[None]):
    """What there is to await when nothing is left to do."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


@dataclass(frozen=True, slots=True)
class Hooks:
    """Where what a handler says goes to."""

    progress: ProgressHook = ignore_progress
    heartbeat: Callable[[], None] = ignore_heartbeat
    extend: Callable[[float], None] = ignore_extension
    checkpoint: CheckpointHook = ignore_checkpoint
    is_cancelled: Callable[[], bool] = never_cancelled


NO_HOOKS = Hooks()


class HandlerLog(logging.LoggerAdapter[logging.Logger]):
    """Logs with the job's id, type and attempt on each line; `ctx.log("…")` is `ctx.log.info`."""

    def __call__(self, message: object, *arguments: object) -> None:
        self.info(message, *arguments, stacklevel=2)


class Context:
    """One attempt of one job, as its handler sees it."""

    def __init__(
        self,
        *,
        job_id: str,
        type: str,
        namespace: str = "default",
        attempt: int = 1,
        max_attempts: int = 0,
        dispatch_no: int = 1,
        labels: Mapping[str, str] | None = None,
        traceparent: str = "",
        checkpoint: tuple[bytes, str] | None = None,
        hooks: Hooks = NO_HOOKS,
        scratch_root: Path | None = None,
        logger: logging.Logger = log,
    ) -> None:
        self.job_id = job_id
        self.namespace = namespace
        self.type = type
        #: 1 for the first try.
        self.attempt = attempt
        #: How many tries the job has in all; 0 when the mesh did not say.
        self.max_attempts = max_attempts
        #: The fence: only the newest dispatch of a job can commit. Unique per try, so it makes a
        #: good suffix for what the handler writes elsewhere.
        self.dispatch_no = dispatch_no
        self.labels: Mapping[str, str] = dict(labels or {})
        #: W3C trace context of the submission; empty when it was not traced.
        self.traceparent = traceparent
        self.log = HandlerLog(logger, self._log_fields())
        self._checkpoint = checkpoint
        self._hooks = hooks
        self._scratch_root = scratch_root
        self._scratch: Path | None = None

    def _log_fields(self) -> dict[str, object]:
        return {"job_id": self.job_id, "type": self.type, "attempt": self.attempt}

    def __repr__(self) -> str:
        return f"<Context job={self.job_id} type={self.type!r} attempt={self.attempt}>"

    @property
    def is_last_attempt(self) -> bool:
        """Whether no retry follows if this attempt fails. False when the mesh did not say."""
        return 0 < self.max_attempts <= self.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the result of this attempt is no longer wanted."""
        return self._hooks.is_cancelled()

    def check_cancelled(self) -> None:
        """Raises AttemptCancelled if the result is no longer wanted; call it in long loops."""
        if self.cancelled:
            raise AttemptCancelled(f"attempt {self.attempt} of job {self.job_id} was cancelled")

    # --- what the handler says

    def progress(self, done: float, total: float = 0, message: str = "") -> None:
        """Says how far the work is, in the handler's own unit; a sign of life as well.

        Cheap to call often: watchers get the newest, at most once a second. A `total` of 0 means
        that nobody knows.
        """
        _check_amount("done", done)
        _check_amount("total", total)
        _check_message(message)
        self._hooks.progress(done, total, message)

    def percent(self, percent: float, message: str = "") -> None:
        """Says how far the work is, from 0 to 100."""
        _check_amount("percent", percent)
        if percent > 100:
            raise ValueError(f"percent: {percent} is more than 100")
        self.progress(percent, 100, message)

    def heartbeat(self) -> None:
        """A sign of life without news, for jobs with a progress timeout. Cheap to call often."""
        self._hooks.heartbeat()

    def extend(self, seconds: float) -> None:
        """Lets this attempt run for so long from now, whatever its run timeout was.

        The job's total timeout still holds.
        """
        _check_amount("seconds", seconds)
        if not 0 < seconds <= MAX_EXTENSION_SECONDS:
            raise ValueError(f"seconds: {seconds} is not above 0 and at most 30 days")
        self._hooks.extend(seconds)

    # --- what outlives the attempt

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Stores where the work stands, for the next attempt to go on from: JSON or bytes.

        At most 64 KiB; it takes the place of the one before, and None removes that. In a plain
        function it is stored when this returns, in an `async def` when what it returns was awaited.
        Raises AttemptCancelled if the job has moved on without this attempt.
        """
        data, content_type = _encoded(value)
        return self._hooks.checkpoint(data, content_type) or Done()

    @property
    def last_checkpoint(self) -> Any:
        """What the last checkpoint of an *earlier* attempt of the job holds; None without one."""
        if self._checkpoint is None:
            return None
        data, content_type = self._checkpoint
        return from_json(data, content_type) if content_type == JSON_TYPE else data

    # --- files

    @property
    def scratch(self) -> Path:
        """A folder of this attempt's own, made at first use and removed after the attempt."""
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="attempt-", dir=self._scratch_root))
        return self._scratch

    def close(self) -> None:
        """Removes the scratch folder. For whoever made the context, once the output is stored."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def _check_amount(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite or value < 0:
        raise ValueError(f"{name}: expected a finite number of at least 0, got {str(value)[:40]}")


def _check_message(message: str) -> None:
    if not isinstance(message, str):
        raise TypeError(f"message: expected str, got {type(message).__name__}")
    if len(message) > MAX_MESSAGE_CHARACTERS:
        limit = MAX_MESSAGE_CHARACTERS
        raise ValueError(f"message: {len(message)} characters, at most {limit}")


def _encoded(value: Any) -> tuple[bytes, str]:
    if value is None:
        return b"", ""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data, content_type = bytes(value), BYTES_TYPE
    else:
        data, content_type = to_json(value), JSON_TYPE  # raises OutputError for what is no JSON
    if len(data) > MAX_CHECKPOINT_BYTES:
        raise ValueError(f"checkpoint: {len(data)} bytes, at most {MAX_CHECKPOINT_BYTES}")
    return data, content_type
