"""Reads the `.sql` files: named statements, a line of purpose each, and fragments they share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_HEADING = re.compile(r"^-- (name|fragment): (\w+)(, writes)?$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_SLOT = re.compile(r"\{(\w+)\}")
#: In this order: what stands in one may use the fragments of those before it.
_FILES = (
    "queries.sql",
    "handed.sql",
    "turns.sql",
    "changes.sql",
    "sayings.sql",
    "limits.sql",
    "retention.sql",
    "ties.sql",
    "floors.sql",
)


@dataclass(frozen=True, slots=True)
class Query:
    """A statement. `writes` says that losing the connection leaves its outcome unknown."""

    name: str
    sql: str
    writes: bool
    prepared: bool = True
    """Planned once per connection. Not for statements that are composed for each call."""


@dataclass(frozen=True, slots=True)
class Queries:
    """All statements by name."""

    by_name: dict[str, Query]
    fragments: dict[str, str]

    def __getitem__(self, name: str) -> Query:
        return self.by_name[name]

    @classmethod
    def load(cls) -> Queries:
        """Read the files that lie beside this module."""
        folder = files(__package__)
        texts = (folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES)
        return cls.parse("\n\n".join(texts))

    @classmethod
    def parse(cls, text: str) -> Queries:
        """Cut the text at its headings."""
        by_name: dict[str, Query] = {}
        fragments: dict[str, str] = {}
        headings = list(_HEADING.finditer(text))
        ends = [heading.start() for heading in headings[1:]] + [len(text)]
        for heading, end in zip(headings, ends, strict=True):
            kind, name, writes = heading.groups()
            sql = _COMMENT.sub("", text[heading.end() + 1 : end]).strip()
            sql = _SLOT.sub(lambda slot: fragments[slot.group(1)], sql)
            if name in by_name or name in fragments:
                raise ValueError(f"two statements are called {name}")
            if kind == "fragment":
                fragments[name] = sql
            else:
                by_name[name] = Query(name, sql, writes is not None)
        return cls(by_name, fragments)
