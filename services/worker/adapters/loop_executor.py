"""Runs `async def` handlers in the worker's own event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from jobmesh.context import Context, Hooks
from jobmesh.errors import AttemptCancelled, HandlerError, PermanentFailure, RetryAfter, Snooze
from jobmesh.handlers import HandlerSpec
from jobmesh.invocation import NO_OUTPUT, decode, encode, parameters_of, wait_of, words_of

from services.mesh.jobs.model import NO_PAYLOAD, Payload
from services.mesh.jobs.retry import FailureKind
from services.mesh.runtime import in_own_thread
from services.worker.adapters.handler_logs import AttemptLogs
from services.worker.adapters.tracebacks import Tracebacks
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed, Snoozed, failure
from services.worker.ports import RETURNED_NOTHING, Executor, Observer, Returned

#: Checkpoints of one attempt that may be under way; more means that nobody awaits them.
MAX_CHECKPOINTS = 16


class LoopExecutor(Executor):
    """They must not block: a blocked loop renews no lease."""

    def __init__(
        self, handlers: Mapping[str, HandlerSpec], spool: Path, logs: AttemptLogs | None = None
    ) -> None:
        self._handlers = handlers
        self._spool = spool
        self._logs = logs or AttemptLogs()
        self._tracebacks = Tracebacks()
        wants = {type_: parameters_of(spec.function) for type_, spec in handlers.items()}
        self._wants_file = {type_: want.input_kind is Path for type_, want in wants.items()}
        #: For handlers that look at no context, one for all of them: making it is a good part of
        #: what a trivial attempt costs.
        self._shared = {
            type_: Context(job_id="", type=type_)
            for type_, want in wants.items()
            if want.context_name is None and want.input_kind is not Path
        }

    def wants_file(self, type_: str) -> bool:
        return self._wants_file[type_]

    async def run(
        self, attempt: Attempt, source: bytes | Path, observer: Observer
    ) -> Returned | Failed | Snoozed:
        spec = self._handlers[attempt.type]
        observer.started()
        self._logs.follow(observer)
        context = self._shared.get(attempt.type) or self._context(attempt, observer)
        try:
            if isinstance(source, bytes):
                arguments = decode(spec, source, attempt.content_type, context)
            else:
                # A large file may have to be read: not in the loop, nor in the handlers' threads.
                arguments = await in_own_thread(decode, spec, source, attempt.content_type, context)
            output = encode(await spec.function(**arguments))
        except asyncio.CancelledError:
            context.close()
            raise
        except BaseException as error:
            # All of them: a handler's `sys.exit()` must not end the worker.
            context.close()
            return self._ended_by(error)
        if isinstance(output.content, Path):
            return Returned(
                output.content, output.content_type, partial(in_own_thread, context.close)
            )
        context.close()
        if output is NO_OUTPUT:
            return RETURNED_NOTHING
        return Returned(output.content, output.content_type)

    def _context(self, attempt: Attempt, observer: Observer) -> Context:
        line = HandlerLine(attempt, observer)
        stored = attempt.checkpoint
        return Context(
            job_id=str(attempt.job_id),
            type=attempt.type,
            namespace=attempt.namespace,
            attempt=attempt.number,
            max_attempts=attempt.max_attempts,
            dispatch_no=attempt.fence,
            traceparent=attempt.traceparent,
            checkpoint=None if stored is None else (stored.data or b"", stored.content_type),
            hooks=Hooks(
                line.progress, line.heartbeat, line.extend, line.checkpoint, line.is_cancelled
            ),
            scratch_root=self._spool,
        )

    def _ended_by(self, error: BaseException) -> Failed | Snoozed:
        """An exception of a handler as the attempt's ending."""
        wait = wait_of(error) if isinstance(error, RetryAfter | Snooze) else None
        if isinstance(error, Snooze) and wait is not None:
            return Snoozed(wait)
        permanent = isinstance(error, PermanentFailure | HandlerError)
        kind = FailureKind.PERMANENT if permanent else FailureKind.ERROR
        text = self._tracebacks.text(error)
        found = failure(type(error).__name__, words_of(error), text, kind=kind)
        return Failed(found, wait)


class HandlerLine:
    """From a handler to its observer, from the loop and from threads that the handler started."""

    def __init__(self, attempt: Attempt, observer: Observer) -> None:
        self._attempt, self._observer = attempt, observer
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._storing: set[asyncio.Task[None]] = set()
        #: The newest progress of threads, which the loop is told of once, however much they say:
        #: it has no other way to keep a thread from filling it.
        self._newest: deque[tuple[float, float, str]] = deque(maxlen=1)
        self._is_told = False

    def is_cancelled(self) -> bool:
        return self._attempt.stop is not None

    def progress(self, done: float, total: float, message: str) -> None:
        if self._is_here():
            self._observer.progressed(done, total, message)
        else:
            self._newest.append((done, total, message))
            self._tell_loop()

    def heartbeat(self) -> None:
        if self._is_here():
            self._observer.alive()
        else:
            self._tell_loop()

    def extend(self, seconds: float) -> None:
        if self._is_here():
            self._observer.extended(seconds)
        else:
            self._loop.call_soon_threadsafe(self._observer.extended, seconds)

    def checkpoint(self, data: bytes, content_type: str) -> asyncio.Task[None] | None:
        """To be awaited in the loop; in a thread it blocks until it is stored."""
        storing = self._store(Payload.inline(data, content_type) if content_type else NO_PAYLOAD)
        if not self._is_here():
            asyncio.run_coroutine_threadsafe(storing, self._loop).result()
            return None
        if len(self._storing) >= MAX_CHECKPOINTS:
            storing.close()
            raise RuntimeError("too many checkpoints under way: await ctx.checkpoint(…)")
        task = self._loop.create_task(storing, name="checkpoint")
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        return task

    async def _store(self, state: Payload) -> None:
        if not await self._observer.checkpointed(state):
            raise AttemptCancelled("checkpoint refused: the job has moved on without this attempt")

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def _tell_loop(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._is_told = False  # first: what comes from now on is told anew
        if self._newest:
            self._observer.progressed(*self._newest.pop())
        else:
            self._observer.alive()
