"""How an error ends a command: one line on stderr, and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from jobmesh.errors import (
    CallError,
    DeadlineExceeded,
    HandlerError,
    InputError,
    InvalidArgument,
    JobmeshError,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
    WaitTimeout,
)

FAILED, USAGE, UNAVAILABLE, OUT_OF_TIME, INTERRUPTED = 1, 2, 3, 4, 130
READER_LEFT = 141  # as if by SIGPIPE


class CommandError(JobmeshError):
    """A command cannot go on; `code` is its exit code."""

    def __init__(self, message: str, hint: str = "", code: int = FAILED) -> None:
        super().__init__(f"{message} — {hint}" if hint else message)
        self.code = code


def exit_code(error: BaseException) -> int:
    """What a failed command tells the shell."""
    match error:
        case CommandError():
            return error.code
        case InvalidArgument() | OutOfRange() | InputError() | HandlerError() | ValueError():
            return USAGE
        case CallError(reason="UNKNOWN_TYPE"):
            return USAGE  # a mistake in an argument, though the mesh has to look
        case Unavailable() | ResourceExhausted():
            return UNAVAILABLE
        case DeadlineExceeded() | WaitTimeout():
            return OUT_OF_TIME
        case KeyboardInterrupt():
            return INTERRUPTED
    return FAILED


def explain(error: BaseException) -> str:
    """The one line. Errors we did not foresee say how to see more."""
    if isinstance(error, (JobmeshError, ValueError)) or _is_local(error):
        return str(error)
    return f"{type(error).__name__}: {error} — run again with JOBMESH_DEBUG=1 to see where"


def _is_local(error: BaseException) -> bool:
    # By name: the local stack is not imported by commands that do not need it.
    return type(error).__name__ == "LocalError"


class MeshGroup(TyperGroup):
    """The root of the commands, which turns what they raise into a line and an exit code."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The help's list of commands, under the headings they were given."""
        sections: dict[str, list[tuple[str, str]]] = {}
        limit = formatter.width - 6 - max(map(len, self.commands))
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            row = (name, command.get_short_help_str(limit))
            sections.setdefault(str(heading), []).append(row)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError:
            # Whoever read our output has left, as `head` does. Python would complain once more when
            # it flushes at exit: give it something to flush into.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(READER_LEFT) from None
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("JOBMESH_DEBUG") == "1":
                raise
            _say(error)
            raise typer.Exit(exit_code(error)) from None


def _say(error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    line = " ".join(explain(error).split())
    prefix = "error"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        prefix = "\x1b[31merror\x1b[0m"
    hint = ""
    if isinstance(error, CallError) and error.reason == "NOT_IMPLEMENTED":
        hint = " — the mesh is older or newer than this command"
    sys.stderr.write(f"{prefix}: {line}{hint}\n")
