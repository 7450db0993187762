"""Where a command's words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console, RenderableType
    from rich.text import Text

#: In a pipe nothing is wrapped or cut: columns are as wide as what stands in them.
PIPE_WIDTH = 10_000
ID_WIDTH = 36
#: Columns of prose: on a narrow terminal they take several lines instead of being cut.
WRAPPED = ("NOTE", "WHY", "FAILURE", "LAST ERROR")
#: Prose with less room than this is no pleasure to read.
READABLE = 24
GAP = 2
#: The least that is left of a first column.
SHORTEST = 8


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def console(stream: TextIO) -> Console:
    """A console that never colours a pipe, whatever the environment asks for.

    Text is what it is: labels, failures and inputs may have `[/tmp]` or `:x:` in them.
    """
    from rich.console import Console

    if is_terminal(stream):
        return Console(file=stream, highlight=False, soft_wrap=False, markup=False, emoji=False)
    return Console(
        file=stream,
        force_terminal=False,
        color_system=None,
        no_color=True,
        highlight=False,
        markup=False,
        emoji=False,
        width=PIPE_WIDTH,
    )


class Screen:
    """The output of one command. `as_json` is what `--json` says."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    @cached_property
    def out(self) -> Console:
        return console(sys.stdout)

    @cached_property
    def err(self) -> Console:
        return console(sys.stderr)

    @property
    def is_live(self) -> bool:
        """Whether somebody looks on: then things may move."""
        return is_terminal(sys.stderr) and not self.as_json

    @property
    def shows_results(self) -> bool:
        """Whether results go to somebody's eyes; else to a file or a program, which wants all."""
        return sys.stdout.isatty()

    def message(self, message: Message) -> None:
        """One message as one line of canonical protobuf JSON."""
        self.line(self.as_dict(message))

    @staticmethod
    def as_dict(message: Message) -> dict[str, Any]:
        """A message as canonical protobuf JSON has it."""
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(message)

    def line(self, value: Mapping[str, Any]) -> None:
        """One JSON object on one line, at once."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def text(self, text: str) -> None:
        """A plain result."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def bytes(self, data: bytes) -> None:
        """A result that need not be text, as it is."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, *parts: RenderableType, style: str = "") -> None:
        """Something beside the result."""
        self.err.print(*parts, style=style)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str | Text | None]]) -> None:
        """A table without frame; the same in a pipe, so that it can be cut and grepped. Prose that
        has no room beside the other columns of a terminal stands below them.
        """
        cells = [[cell or "" for cell in row] for row in rows]
        if lacks_room(columns, cells, self.out.width):
            self.show(stack(columns, cells, self.out.width))
        else:
            self.show(table(columns, cells))

    def show(self, renderable: RenderableType) -> None:
        """A result made by rich, without the blanks it fills lines up with."""
        with self.out.capture() as captured:
            self.out.print(renderable)
        lines = captured.get().splitlines()
        self.text("\n".join(line.rstrip() for line in lines))


Cells = Sequence[Sequence["str | Text"]]


def lacks_room(columns: Sequence[str], rows: Cells, width: int) -> bool:
    """Whether so wide a terminal has too little left for the prose of a table."""
    rest = [at for at, column in enumerate(columns) if column not in WRAPPED]
    prose = [at for at, column in enumerate(columns) if column in WRAPPED]
    wanted = sum(min(READABLE, size) for size in _widths(columns, rows, prose))
    taken = sum(size + GAP for size in _widths(columns, rows, rest))
    return any(row[at] for row in rows for at in prose) and taken + wanted > width


def _widths(columns: Sequence[str], rows: Cells, places: Sequence[int]) -> list[int]:
    from rich.cells import cell_len

    return [max(cell_len(str(row[at])) for row in (columns, *rows)) for at in places]


def stack(columns: Sequence[str], rows: Cells, width: int) -> RenderableType:
    """A table of the columns that are no prose; that of each row stands below it."""
    from rich.console import Group
    from rich.padding import Padding

    rest = [at for at, column in enumerate(columns) if column not in WRAPPED]
    sizes = _widths(columns, rows, rest)
    # What is too much goes from the first column: the others are numbers, and short.
    over = sum(size + GAP for size in sizes) - GAP - width
    least = ID_WIDTH if columns[0] == "ID" else SHORTEST
    sizes[0] = max(min(least, sizes[0]), sizes[0] - max(0, over))
    parts: list[RenderableType] = [_line([columns[at] for at in rest], sizes, "bold")]
    for row in rows:
        parts.append(_line([row[at] for at in rest], sizes))
        prose = (row[at] for at in range(len(columns)) if at not in rest and row[at])
        parts.extend(Padding(text, (0, 0, 0, GAP)) for text in prose)
    return Group(*parts)


def _line(cells: Sequence[str | Text], sizes: Sequence[int], style: str = "") -> RenderableType:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, GAP, 0, 0))
    for size in sizes:
        made.add_column(width=size, no_wrap=True, overflow="ellipsis", style=style)
    made.add_row(*cells)
    return made


def table(columns: Sequence[str], rows: Cells) -> RenderableType:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for column in columns:
        wraps = column in WRAPPED
        made.add_column(
            column,
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            # What a narrow terminal cuts off must not be the part one needs to go on.
            min_width=ID_WIDTH if column == "ID" else 9 if column == "STATE" else None,
        )
    for row in rows:
        made.add_row(*row)
    return made


def columns(rows: Iterable[tuple[str, RenderableType]]) -> RenderableType:
    """Names and values, without a header."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
