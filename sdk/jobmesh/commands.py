"""Commands: programs in any language as handlers of a job type.

    app = App("images")
    app.command("resize", ["convert", "{input}", "-resize", "50%", "{output}"], timeout=60)
    app.command("wordcount", ["wc", "-w"], content_type="text/plain")

The input is on stdin, or in a file where `{input}` stands; the output is what the program prints on
stdout, or what it leaves in the file where `{output}` stands. Exit code 0 is success, every other a
failure. No shell is involved: name one if you want one (`["sh", "-c", "…"]`).

A worker is also given commands without any Python: `jobmesh worker --command 'wordcount=wc -w'`.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from jobmesh.codec import BYTES_TYPE
from jobmesh.errors import HandlerError

TYPE_PATTERN = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
MAX_TYPE_CHARACTERS = 63

INPUT, OUTPUT = "{input}", "{output}"


def check_type(type: str) -> None:
    """HandlerError for a name that the contract does not allow for job types."""
    if not TYPE_PATTERN.fullmatch(type) or len(type) > MAX_TYPE_CHARACTERS:
        raise HandlerError(
            f"job type {type!r} is not allowed: "
            "use lower-case letters, digits, '.', '_', '-' (at most 63)"
        )


def check_limits(type: str, timeout: object, capacity: object) -> None:
    """HandlerError for limits under which no attempt could run."""
    if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
        raise HandlerError(f"job {type!r}: capacity must be at least 1, not {capacity}")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise HandlerError(
            f"job {type!r}: timeout must be a positive number of seconds, not {timeout!r}"
        )


@dataclass(frozen=True, slots=True)
class Command:
    """A program that serves one job type."""

    type: str
    #: The program and its arguments; the placeholders `{input}` and `{output}` stand for files.
    argv: tuple[str, ...]
    #: Seconds an attempt may run; None leaves it to the job or the worker.
    timeout: float | None = None
    #: Attempts at once per worker; None lets the worker choose.
    capacity: int | None = None
    #: Where it runs; empty is the worker's own folder. A relative program is looked up there.
    directory: str = ""
    #: What it finds in its environment besides what the worker has.
    environ: Mapping[str, str] = field(default_factory=dict)
    #: Media type of its output.
    content_type: str = BYTES_TYPE

    def __post_init__(self) -> None:
        check_type(self.type)
        check_limits(self.type, self.timeout, self.capacity)
        if not self.argv or not self.argv[0]:
            raise HandlerError(f"command {self.type!r}: names no program")
        words = (
            *(*self.argv, self.directory, self.content_type),
            *(*self.environ, *self.environ.values()),
        )
        if any("\0" in word for word in words):
            raise HandlerError(f"command {self.type!r}: has a NUL character in it")

    @property
    def reads_file(self) -> bool:
        """Whether it takes its input as a file, not on stdin."""
        return any(INPUT in word for word in self.argv)

    @property
    def writes_file(self) -> bool:
        """Whether it leaves its output in a file, not on stdout."""
        return any(OUTPUT in word for word in self.argv)

    def arguments(self, input: str, output: str) -> list[str]:
        """The command line for one attempt."""
        return [word.replace(INPUT, input).replace(OUTPUT, output) for word in self.argv]


def command_of(type: str, value: object) -> Command:
    """A command line, a list of words, or an object with the fields of Command, as a Command."""
    if isinstance(value, str):
        return Command(type, tuple(_split(type, value)))
    if isinstance(value, Mapping):
        return _from_fields(type, value)
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        return Command(type, tuple(value))
    raise HandlerError(f"command {type!r}: expected a command line, a list of words or an object")


def _split(type: str, line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise HandlerError(f"command {type!r}: {error}: {line}") from error


def _from_fields(type: str, value: Mapping[str, Any]) -> Command:
    known = {one.name for one in fields(Command)} - {"type"}
    if unknown := sorted(set(value) - known):
        expected = ", ".join(sorted(known))
        raise HandlerError(f"command {type!r}: no such field: {unknown[0]}; there are {expected}")
    argv = value.get("argv")
    words = _split(type, argv) if isinstance(argv, str) else argv
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise HandlerError(f"command {type!r}: argv: expected a command line or a list of words")
    rest = {name: given for name, given in value.items() if name != "argv"}
    try:
        return Command(type, tuple(words), **rest)
    except (TypeError, AttributeError) as error:
        raise HandlerError(f"command {type!r}: {error}") from error


def parse_commands(text: str) -> dict[str, Command]:
    """Commands by type from JSON: `{"wordcount": "wc -w", "resize": {"argv": […], …}}`."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise HandlerError(f"commands are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise HandlerError('commands: expected a JSON object {"type": "program arguments"}')
    return {type: command_of(type, one) for type, one in value.items()}
