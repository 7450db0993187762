"""A line per call at debug; a warning where we failed the caller rather than the caller us."""

from __future__ import annotations

import logging
import time

from services.mesh.errors import Code
from services.mesh.rpc.interceptors.method import Call

log = logging.getLogger("services.mesh.rpc")

#: Outcomes that say something about this service. The others are the caller's own doing.
_OURS = frozenset({Code.UNKNOWN, Code.DATA_LOSS, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED})


def logged(call: Call, code: Code, error: BaseException | None) -> None:
    """Log how the call ended. A defect is logged where it is found, with its traceback."""
    level = logging.WARNING if code in _OURS else logging.DEBUG
    if not log.isEnabledFor(level):
        return
    extra = {
        "action": "rpc",
        "method": call.method.full_name,
        "code": code.name,
        "seconds": round(time.perf_counter() - call.began, 6),
    }
    if error is not None:
        extra["error"] = str(error)
    log.log(level, "%s %s", call.method.name, code.name, extra=extra)
