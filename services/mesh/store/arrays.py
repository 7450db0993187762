"""Arrays as Postgres reads them: packed by hand, in binary, each with one fixed type.

A statement that takes a batch takes one array per column. The driver's own list adapter picks the
array's type from its contents, so that a batch with a large number or without any value would be
another statement to prepare and plan. A column in which no row
has a value is sent as an empty array: `unnest` fills it up with NULLs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self
from uuid import UUID

from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_NULL = b"\xff\xff\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Postgres counts microseconds from there; since 1970.
EPOCH_US = int(_EPOCH.timestamp()) * 1_000_000
_HEADER = struct.Struct("!iiIii")
_EMPTY = struct.Struct("!iiI")
_LENGTH = struct.Struct("!i").pack
_INT2 = struct.Struct("!ih").pack
_INT4 = struct.Struct("!ii").pack
_INT8 = struct.Struct("!iq").pack
_FLOAT8 = struct.Struct("!id").pack


class Array:
    """A column of a batch, encoded."""

    __slots__ = ("encoded",)
    array_oid: ClassVar[int]
    item_oid: ClassVar[int]
    repeats: ClassVar[bool] = True
    """Columns of this type often hold one value throughout (a type, a worker, a priority)."""

    def __init__(self, items: Sequence[Any]) -> None:
        count = len(items)
        if items.count(None) == count:
            self.encoded = _EMPTY.pack(0, 0, self.item_oid)
            return
        header = _HEADER.pack(1, 1, self.item_oid, count, 1)
        if self.repeats and items.count(items[0]) == count:
            self.encoded = header + self.pack(items[:1])[0] * count
        else:
            self.encoded = header + b"".join(self.pack(items))

    @classmethod
    def same(cls, item: Any, count: int) -> Self:
        """A column that holds one value throughout."""
        column = cls(())
        if item is not None:
            column.encoded = (
                _HEADER.pack(1, 1, cls.item_oid, count, 1) + cls.pack([item])[0] * count
            )
        return column

    @staticmethod
    def pack(items: Sequence[Any]) -> list[bytes]:
        """Each item with its length in front."""
        raise NotImplementedError


class Uuids(Array):
    array_oid, item_oid = 2951, 2950
    repeats = False  # and comparing them is slow

    @staticmethod
    def pack(items: Sequence[UUID | None]) -> list[bytes]:
        return [_NULL if i is None else b"\0\0\0\x10" + i.int.to_bytes(16, "big") for i in items]


class Keys(Array):
    """Uuids that came as their 16 bytes, and need not become objects."""

    array_oid, item_oid = 2951, 2950
    repeats = False

    @staticmethod
    def pack(items: Sequence[bytes]) -> list[bytes]:
        return [b"\0\0\0\x10" + i for i in items]


class Texts(Array):
    array_oid, item_oid = 1009, 25

    @staticmethod
    def pack(items: Sequence[str | None]) -> list[bytes]:
        return [_NULL if i is None else _LENGTH(len(b := i.encode())) + b for i in items]


class Blobs(Array):
    array_oid, item_oid = 1001, 17

    @staticmethod
    def pack(items: Sequence[bytes | None]) -> list[bytes]:
        return [_NULL if i is None else _LENGTH(len(i)) + i for i in items]


class Smallints(Array):
    array_oid, item_oid = 1005, 21

    @staticmethod
    def pack(items: Sequence[int | None]) -> list[bytes]:
        return [_NULL if i is None else _INT2(2, i) for i in items]


class Integers(Array):
    array_oid, item_oid = 1007, 23

    @staticmethod
    def pack(items: Sequence[int | None]) -> list[bytes]:
        return [_NULL if i is None else _INT4(4, i) for i in items]


class Bigints(Array):
    array_oid, item_oid = 1016, 20

    @staticmethod
    def pack(items: Sequence[int | None]) -> list[bytes]:
        return [_NULL if i is None else _INT8(8, i) for i in items]


class Doubles(Array):
    array_oid, item_oid = 1022, 701

    @staticmethod
    def pack(items: Sequence[float | None]) -> list[bytes]:
        return [_NULL if i is None else _FLOAT8(8, i) for i in items]


class Booleans(Array):
    array_oid, item_oid = 1000, 16

    @staticmethod
    def pack(items: Sequence[bool | None]) -> list[bytes]:
        return [_NULL if i is None else b"\0\0\0\1" + bytes((i,)) for i in items]


class Times(Array):
    array_oid, item_oid = 1185, 1184

    @staticmethod
    def pack(items: Sequence[datetime | None]) -> list[bytes]:
        return [_NULL if i is None else _INT8(8, (i - _EPOCH) // _MICROSECOND) for i in items]


def milliseconds(spans: Sequence[timedelta | None]) -> Bigints:
    """Spans of time as whole milliseconds."""
    step = timedelta(milliseconds=1)
    return Bigints([None if span is None else span // step for span in spans])


def milliseconds_of(span: timedelta | None) -> int | None:
    """A span of time as whole milliseconds."""
    return None if span is None else span // timedelta(milliseconds=1)


def register(adapters: AdaptersMap) -> None:
    """Teach a connection these types."""
    for kind in (Uuids, Keys, Texts, Blobs, Smallints, Integers, Bigints, Doubles, Booleans, Times):
        adapters.register_dumper(kind, _dumper(kind))


def _dumper(kind: type[Array]) -> type[Dumper]:
    def dump(self: Dumper, obj: Array) -> Buffer | None:
        return obj.encoded

    members = {"format": Format.BINARY, "oid": kind.array_oid, "dump": dump}
    return type(f"{kind.__name__}Dumper", (Dumper,), members)
