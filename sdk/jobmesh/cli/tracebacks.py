"""Tracebacks of handlers, without the frames of those who called them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmesh.model import Job

FRAME = '  File "'
#: Where a worker calls a handler. Not all of the SDK: its examples are handlers, too.
_OURS = re.compile(
    r'"[^"]*(services/worker/(executor|adapters)|jobmesh/(invocation|handlers|codec))'
)


def last_traceback(job: Job) -> str:
    """Where the newest attempt of a job failed; empty if it did not, or nobody said where."""
    failure = job.failure
    if failure is None and job.attempts:
        failure = job.attempts[-1].failure
    return own_frames(failure.traceback) if failure is not None else ""


def own_frames(text: str) -> str:
    """The traceback with the handler's frames only; empty if it has none of them."""
    kept: list[str] = []
    dropping = dropped = False
    for line in text.rstrip().splitlines():
        if line.startswith(FRAME):
            dropping = _OURS.search(line) is not None
            dropped = dropped or dropping
        elif not line.startswith("    "):  # the code of a frame is indented more than this
            dropping = False
        if not dropping:
            kept.append(line)
    # An input that does not fit fails before the handler: the failure's own words say it all.
    if dropped and not any(line.startswith(FRAME) for line in kept):
        return ""
    return "\n".join(kept)
