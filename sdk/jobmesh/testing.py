"""Running handlers in tests, without any server.

    from jobmesh.testing import run_job
    assert run_job(resize, Resize("cat.png")) == "cat.png@100"

The input and the output pass through the same codec as in a worker, so a handler that passes here
does not fail in the mesh for reasons of types.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from jobmesh.context import (
    CheckpointHook,
    Context,
    Hooks,
    ProgressHook,
    ignore_checkpoint,
    ignore_progress,
)
from jobmesh.handlers import JobFunction
from jobmesh.invocation import Output, encode, invoke, invoke_async
from jobmesh.payloads import decode_output, encode_input


def make_context(
    type: str = "test",
    *,
    attempt: int = 1,
    max_attempts: int = 0,
    labels: Mapping[str, str] | None = None,
    on_progress: ProgressHook = ignore_progress,
    on_checkpoint: CheckpointHook = ignore_checkpoint,
    last_checkpoint: Any = None,
    scratch_root: Path | None = None,
) -> Context:
    """A context of no real attempt, to call a handler directly with."""
    checkpoint = encode(last_checkpoint)
    assert isinstance(checkpoint.content, bytes)
    return Context(
        job_id=str(uuid4()),
        type=type,
        attempt=attempt,
        max_attempts=max_attempts or attempt,
        labels=labels,
        checkpoint=(checkpoint.content, checkpoint.content_type) if checkpoint.content else None,
        hooks=Hooks(progress=on_progress, checkpoint=on_checkpoint),
        scratch_root=scratch_root,
    )


def run_job(
    function: JobFunction[..., Any],
    input: Any = None,
    *,
    attempt: int = 1,
    max_attempts: int = 0,
    labels: Mapping[str, str] | None = None,
    on_progress: ProgressHook = ignore_progress,
    on_checkpoint: CheckpointHook = ignore_checkpoint,
    last_checkpoint: Any = None,
) -> Any:
    """Runs one attempt of a handler and returns its output, decoded as `result()` would.

    Files come back as their bytes. What the handler raises comes out as it is, a Snooze too. An
    async handler has a loop of its own, also in an async test.
    `on_checkpoint` is given the bytes and the media type of each checkpoint.
    """
    payload = encode_input(input, function)
    with tempfile.TemporaryDirectory() as folder:
        context = make_context(
            function.spec.type,
            attempt=attempt,
            max_attempts=max_attempts,
            labels=labels,
            on_progress=on_progress,
            on_checkpoint=on_checkpoint,
            last_checkpoint=last_checkpoint,
            scratch_root=Path(folder),
        )
        output = _run(function, payload, context)
        content = output.content
        data = content.read_bytes() if isinstance(content, Path) else content
        return decode_output(data, output.content_type)


def _run(function: JobFunction[..., Any], payload: Output, context: Context) -> Output:
    given = (function.spec, payload.content, payload.content_type, context)
    if not function.spec.is_async:
        return invoke(*given)
    # In a thread: the one that calls may have a loop that runs.
    with ThreadPoolExecutor(1, thread_name_prefix="run-job") as thread:
        return thread.submit(lambda: asyncio.run(invoke_async(*given))).result()
