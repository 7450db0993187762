"""Transitions of jobs as they happen: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from jobmesh.cli.render import STYLES, clock
from jobmesh.cli.sayings import progress_bar, progress_words
from jobmesh.cli.screen import Screen
from jobmesh.cli.transitions import event_line, missed_lines, state_line
from jobmesh.times import human

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from jobmesh.client import AsyncClient
    from jobmesh.model import JobEvent, JobState, Progress


@dataclass
class Elapsed:
    """What the moving line says: looked at by rich whenever it draws."""

    state: str
    began: float
    progress: Progress | None = None

    def __rich__(self) -> Text:
        from rich.text import Text

        line = Text(f"{self.state:<10}", style=STYLES.get(self.state, ""))
        line.append(f"  {human(time.monotonic() - self.began)}", style="dim")
        if self.progress is not None:
            line.append(f"  {progress_bar(self.progress)}")
        return line


@contextmanager
def moving_line(screen: Screen, state: str) -> Iterator[Elapsed]:
    """A spinner with the state and the time, while somebody looks on."""
    elapsed = Elapsed(state, time.monotonic())
    if not screen.is_live:
        yield elapsed
        return
    with screen.err.status(elapsed):
        yield elapsed


async def follow(
    client: AsyncClient, job_ids: Sequence[str], screen: Screen, target: Console
) -> dict[str, JobState]:
    """Shows every transition until the jobs have ended; returns the last state of each."""
    named = len(job_ids) > 1
    states: dict[str, JobState] = {}
    origins: dict[str, datetime | None] = {}
    with moving_line(screen, "SCHEDULED") as elapsed:
        async for event in client.watch(*job_ids, progress=True):
            if event.progress is not None:
                origin = origins.get(event.job_id)
                name = event.job_id if named else ""
                _show_progress(screen, target, elapsed, event, origin, name)
                continue
            states[event.job_id] = event.state
            elapsed.progress = None
            created = event.job.create_time if event.job else event.time
            origin = origins.setdefault(event.job_id, created)
            if screen.as_json:
                screen.message(event.message)
                continue
            elapsed.state = event.state
            for line in await _lines(client, event, origin, event.job_id if named else ""):
                target.print(line)
    return states


def _show_progress(
    screen: Screen,
    target: Console,
    elapsed: Elapsed,
    event: JobEvent,
    origin: datetime | None,
    name: str,
) -> None:
    """In the moving line, if there is one; else a line of its own."""
    if screen.as_json:
        screen.message(event.message)
    elif screen.is_live:
        elapsed.progress = event.progress
    elif event.progress is not None:
        line = state_line("PROGRESS", event.time, origin, name)
        target.print(line.append(f"  {progress_words(event.progress)}"))


async def follow_all(
    client: AsyncClient,
    screen: Screen,
    states: Sequence[str],
    types: Sequence[str],
    labels: Mapping[str, str],
) -> None:
    """Shows the jobs that match and live, then every transition, until interrupted."""
    from jobmesh.client.convert import to_filter

    async for event in client.watch(filter=to_filter(states, types, labels)):
        if screen.as_json:
            screen.message(event.message)
        else:
            name = f"{clock(event.time)}  {event.job_id}  {event.type}"
            screen.out.print(event_line(event, None, name))


async def _lines(
    client: AsyncClient, event: JobEvent, origin: datetime | None, name: str
) -> list[Text]:
    """One line per event; for a job that had come further before we looked, all of its way."""
    if event.job is not None and event.version > 1:
        return missed_lines(await client.get(event.job_id, full=True), event, name)
    return [event_line(event, origin, name)]
