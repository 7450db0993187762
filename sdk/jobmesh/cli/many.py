"""submit --inputs-from: one job per line of a file, however many there are."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import typer

from jobmesh.cli.failures import FAILED
from jobmesh.cli.screen import Screen
from jobmesh.codec import JSON_TYPE, from_json
from jobmesh.errors import InputError
from jobmesh.times import human

if TYPE_CHECKING:
    from rich.text import Text

    from jobmesh.client import Ack, AsyncClient
    from jobmesh.options import EnqueueOptions, NewJob

#: Bad lines and jobs that are told one by one; the rest is only counted.
TOLD_ERRORS = 20


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file, or stdin for `-`."""
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below, errors told apart
    except OSError as error:
        raise InputError(f"--inputs-from: cannot read {path}: {error.strerror}") from None
    with file:
        yield file


@dataclass
class Tally:
    """How far it is: looked at by rich whenever it draws."""

    screen: Screen
    stored: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)
    #: Numbers of the lines whose jobs are under way.
    lines: deque[int] = field(default_factory=deque)

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self.summary())

    def summary(self) -> str:
        """`12,000 jobs stored in 1.2 s (10,000/s)`."""
        seconds = max(time.monotonic() - self.began, 0.001)
        words = f"{self.stored:,} jobs stored in {human(seconds)} ({self.stored / seconds:,.0f}/s)"
        return f"{words}, {self.failed:,} not" if self.failed else words

    def acked(self, ack: Ack) -> None:
        line = self.lines.popleft()
        if ack.error is not None:
            self.refused(line, str(ack.error))
            return
        self.stored += 1
        if self.screen.as_json:
            self.screen.line({"line": line, "jobId": ack.id, "existing": ack.existing})
        else:
            sys.stdout.write(ack.id + "\n")

    def refused(self, line: int, error: str) -> None:
        self.failed += 1
        if self.screen.as_json:
            self.screen.line({"line": line, "error": error})
        elif self.failed <= TOLD_ERRORS:
            self.screen.note(f"line {line}: {error}")


def jobs_of(
    lines: Iterable[bytes], type: str, options: EnqueueOptions, tally: Tally, chain: bool = False
) -> Iterator[NewJob]:
    """A job per line that is not empty; a line that is no JSON is told and left out.

    In a chain, each waits for the one before.
    """
    from jobmesh.options import NewJob

    for number, line in enumerate(lines, 1):
        content = line.strip()
        if not content:
            continue
        try:
            from_json(content)
        except InputError as error:
            tally.refused(number, f"not JSON ({error.message.rpartition(': ')[2]})")
            continue
        tally.lines.append(number)
        yield (new := NewJob(type, content, **options))
        if chain:
            options["after"] = new


async def submit_lines(
    client: AsyncClient,
    screen: Screen,
    type: str,
    path: str,
    options: EnqueueOptions,
    chain: bool = False,
) -> None:
    """Submits them all; prints the ids in the order of the lines."""
    tally = Tally(screen)
    options["content_type"] = JSON_TYPE
    with opened(path) as file, screen.err.status(tally) if screen.is_live else nullcontext():
        async with client:
            async for ack in client.enqueue_stream(jobs_of(file, type, options, tally, chain)):
                tally.acked(ack)
    sys.stdout.flush()
    if not screen.as_json:
        screen.note(tally.summary())
    if tally.failed:
        raise typer.Exit(FAILED)
