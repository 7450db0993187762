"""The way of a job in lines: a transition each, with its time since the job was stored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from jobmesh.cli.render import STYLES
from jobmesh.times import human

if TYPE_CHECKING:
    from rich.text import Text

    from jobmesh.model import Attempt, Job, JobEvent
    from jobmesh.v1.job_pb2 import Job as JobMessage

REASONS = {
    "SNAPSHOT": "",
    "CREATED": "stored",
    "CLAIMED": "",
    "STARTED": "",
    "SUCCEEDED": "",
    "RETRY": "failed, will be retried",
    "FAILED": "no attempt is left",
    "HANDED_BACK": "handed back by its worker",
    "SNOOZED": "asked to be run later",
    "SWEPT": "the dispatch got lost",
    "RESCUED": "rescued: its worker is gone",
    "LOST": "its workers died too often",
    "LATE_COMMIT": "late result accepted",
    "CANCELLED": "",
    "EXPIRED": "was not started in time",
    "UNBLOCKED": "what it waited for has ended",
    "PARENT_FAILED": "what it waited for did not succeed",
    "UPDATED": "changed by a caller",
    "REDRIVEN": "started over",
}


def event_line(event: JobEvent, origin: datetime | None, name: str = "") -> Text:
    """One transition: `RUNNING  +12 ms  attempt 1`."""
    line = state_line(event.state, event.time, origin, name)
    remarks = "  ".join(_remarks(event))
    if remarks:
        line.append(f"  {remarks}")
    line.rstrip()
    return line


def state_line(state: str, time: datetime | None, origin: datetime | None, name: str) -> Text:
    """`RUNNING  +12 ms`, after the job's id where several are followed."""
    from rich.text import Text

    line = Text(f"{name}  " if name else "")
    line.append(f"{state:<10}", style=STYLES.get(state, ""))
    line.append(f" {offset(time, origin):>10}", style="dim")
    return line


def offset(time: datetime | None, origin: datetime | None) -> str:
    """`+12 ms`; milliseconds as long as they can be told apart."""
    if time is None or origin is None:
        return ""
    span = (time - origin).total_seconds()
    return f"+{span * 1000:.0f} ms" if span < 100 else f"+{human(span)}"


def missed_lines(job: Job, event: JobEvent, name: str = "") -> list[Text]:
    """The way of a job, by its attempts, up to the snapshot that a watch began with."""
    assert event.job is not None
    steps = timeline(job, event.job)
    lines = [state_line(state, time, job.create_time, name) for state, time in steps]
    for remark in (*_remarks(event), job.end_note if event.state.terminal else ""):
        lines[-1].append(f"  {remark}" if remark else "")
    lines[-1].rstrip()
    return lines


def timeline(job: Job, seen: Job) -> list[tuple[str, datetime | None]]:
    """The states that a job went through. `seen` is the same one as the watch had it: what came
    after that, the watch tells itself.
    """
    fence = _message(seen).dispatch_no
    first = "BLOCKED" if _message(job).spec.dependencies else "SCHEDULED"
    found: list[tuple[str, datetime | None]] = [(first, job.create_time)]
    for attempt in job.attempts:
        if attempt.dispatch_no <= fence:
            found += _steps(attempt, seen.state if attempt.dispatch_no == fence else "")
    if seen.state.terminal:
        found.append((seen.state, seen.end_time))
    elif found[-1][0] != seen.state:
        found.append((seen.state, None))  # it does not come from an attempt: nobody says when
    return found


def _steps(attempt: Attempt, state: str) -> Iterator[tuple[str, datetime]]:
    """The steps of one attempt; of the newest, those up to the state that the job is in."""
    if attempt.dispatch_time is not None:
        yield "DISPATCHED", attempt.dispatch_time
    if attempt.start_time is not None and state != "DISPATCHED":
        yield "RUNNING", attempt.start_time
    if attempt.end_time is not None and state in ("", "SCHEDULED"):
        yield "SCHEDULED", attempt.end_time


def _message(job: Job) -> JobMessage:
    from jobmesh.v1.job_pb2 import Job as JobMessage

    assert isinstance(job.message, JobMessage)
    return job.message


def _remarks(event: JobEvent) -> list[str]:
    remarks = []
    if event.attempt and event.state in ("DISPATCHED", "RUNNING", "FAILED"):
        remarks.append(f"attempt {event.attempt}")
    if event.reason != "FAILED" or not event.note:  # else that says why exactly
        remarks.append(REASONS.get(event.reason, event.reason.lower()))
    if event.failure is not None:
        remarks.append(str(event.failure))
    remarks.append(event.note)
    if event.state == "SCHEDULED" and event.reason != "CREATED":
        waits = event.due_time and event.time and (event.due_time - event.time).total_seconds()
        if waits and waits > 0:
            remarks.append(f"due in {human(waits)}")
    return [remark for remark in remarks if remark]
