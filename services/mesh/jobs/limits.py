"""Limits of how many attempts run at once: their names, and who shares one.

A type has up to two: one for all its attempts, one for each concurrency key within a namespace.
Names are parts of keys in etcd, so a key that the caller chose goes in as a hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from uuid import UUID

#: The name of a type's own limit; no hash is written like this.
ALL = "all"


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound of how many run at once, shared by whoever uses the same name."""

    name: str
    places: int


@dataclass(frozen=True, slots=True)
class Place:
    """A place of a limit that somebody has."""

    key: str
    owner: str


def limit_key(namespace: str, concurrency_key: str) -> UUID:
    """What stands for a concurrency key; the store's statements compute the same."""
    text = f"{namespace}/{concurrency_key}".encode()
    return UUID(hashlib.md5(text, usedforsecurity=False).hexdigest())


def owner_of(job_id: UUID, fence: int) -> str:
    """How a place names the attempt that has it."""
    return f"{job_id}/{fence}"


def type_limit(type_: str) -> str:
    """The name of the limit that all attempts of a type share."""
    return f"{type_}/{ALL}"


def key_limit(type_: str, key: UUID) -> str:
    """The name of the limit that the attempts of a type with one key share."""
    return f"{type_}/{key.hex}"


def type_of_limit(name: str) -> tuple[str, UUID | None]:
    """The type, and the key unless it is the type's own limit. ValueError: no name of ours."""
    type_, _, rest = name.rpartition("/")
    return type_, None if rest == ALL else UUID(rest)
