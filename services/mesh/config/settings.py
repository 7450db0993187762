"""What one setting is: its declaration, how its text is read, how its value is shown."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

#: Text that needs more than its Python type to be read.
Kind = Literal["", "seconds", "address"]

_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"^([0-9]*\.?[0-9]+)\s*([a-z]*)$")
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
# A comma parts two entries only before the next "name=": addresses may hold commas themselves.
_ENTRY = re.compile(r"\s*,\s*(?=[A-Za-z0-9_.-]+=)")
_URL_PASSWORD = re.compile(r"(://[^:/@\s]*):[^@\s]*@")


class ConfigError(Exception):
    """The configuration cannot be used; `problems` has one line for each reason."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Spec:
    """What `setting` says about a field beyond its type and default."""

    help: str
    kind: Kind = ""
    secret: bool = False
    low: float | None = None
    high: float | None = None


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    kind: Kind = "",
    secret: bool = False,
    low: float | None = None,
    high: float | None = None,
    default_factory: Any = MISSING,
) -> Any:
    """Declare a field of a config dataclass; without a default it must be given at boot."""
    spec = Spec(help, kind, secret, low, high)
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata={"spec": spec})
    return field(default=default, metadata={"spec": spec})


@dataclass(frozen=True, slots=True)
class Reader:
    """How text becomes a value: `read` raises ValueError, `expects` says what would have done."""

    expects: str
    read: Callable[[str], Any]


def reader_of(annotation: Any, kind: Kind) -> Reader:
    """The reader for a field's annotation; a type nobody can read is a defect of the class."""
    if annotation is int and kind == "seconds":
        return _WHOLE_SECONDS
    if annotation in _SCALARS:
        return _SCALARS[annotation] if not kind else _KINDS[kind]
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return _one_of(typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return _optional(typing.get_args(annotation), kind)
    if origin is tuple:
        return Reader("a comma-separated list", _read_list)
    if origin is Mapping:
        return Reader('pairs "name=value" separated by commas', _read_mapping)
    raise TypeError(f"no reader for {annotation!r}")


def _read_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(word)
    return word in _TRUE


def _read_seconds(text: str) -> float:
    match = _DURATION.match(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(text)
    return float(match[1]) * _UNITS[match[2]]


def _read_whole_seconds(text: str) -> int:
    seconds = _read_seconds(text)
    if seconds != int(seconds):
        raise ValueError(text)
    return int(seconds)


def _read_address(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(text)
    return f"{host}:{int(port)}"


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def _read_mapping(text: str) -> dict[str, str]:
    pairs = [piece.partition("=") for piece in _ENTRY.split(text.strip()) if piece]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        raise ValueError(text)
    if len({name.strip() for name, _, _ in pairs}) < len(pairs):
        raise ValueError("a name stands twice")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _one_of(words: tuple[Any, ...]) -> Reader:
    def read(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(text)
        return text.strip().lower()

    return Reader(f"one of {', '.join(words)}", read)


def _optional(members: tuple[Any, ...], kind: Kind) -> Reader:
    (inner,) = (reader_of(member, kind) for member in members if member is not type(None))
    return Reader(
        f"{inner.expects}, or empty for none",
        lambda text: inner.read(text) if text.strip() else None,
    )


_SCALARS: dict[Any, Reader] = {
    str: Reader("text", str.strip),
    int: Reader("a whole number", lambda text: int(text.strip().replace("_", ""))),
    float: Reader("a number", float),
    bool: Reader("true or false", _read_bool),
}
_WHOLE_SECONDS = Reader('whole seconds like "5s", "2m"', _read_whole_seconds)
_KINDS: dict[str, Reader] = {
    "seconds": Reader('a duration like "5s", "250ms", "2m"', _read_seconds),
    "address": Reader('an address "host:port"', _read_address),
}


def shown(value: Any, *, secret: bool = False) -> str:
    """A value as the text that would set it; a secret keeps only what does not give it away."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{k}={shown(v, secret=secret)}" for k, v in value.items())
    if isinstance(value, tuple):
        return ",".join(shown(v, secret=secret) for v in value)
    if isinstance(value, bool):
        return str(value).lower()
    return masked(str(value)) if secret else str(value)


def masked(text: str) -> str:
    """Of a URL only the password is hidden, of anything else the whole."""
    if "://" in text:
        return _URL_PASSWORD.sub(r"\1:***@", text)
    return "***" if text else ""
