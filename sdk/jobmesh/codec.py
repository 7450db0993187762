"""JSON in and out of typed Python values, with errors that name the field.

`build(Resize, {"url": 3})` says `url: expected str, got int`. Understood are the scalars of JSON,
dataclasses, lists, tuples, sets, dicts, unions, literals, enums, datetime, date and UUID; any other
annotation takes the JSON value as it is. Nothing is converted silently, but for an int where a
float is declared, and nothing from the wire is ever executed.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from jobmesh.errors import InputError, OutputError

JSON_TYPE = "application/json"
BYTES_TYPE = "application/octet-stream"

MISSING = dataclasses.MISSING

_NAMES = {type(None): "null", dict: "object", list: "array"}
_SCALARS = (str, int, float, bool, type(None))
_TEXTS: Mapping[type, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
}
_LISTS: Mapping[object, Callable[[Iterable[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Iterable: list,
}


# --- text


def from_json(data: bytes, content_type: str = "") -> Any:
    """The JSON value that `data` spells; what it was said to be goes into the error."""
    try:
        return json.loads(data)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        said = f" ({content_type})" if content_type else ""
        raise _wrong("", f"expected JSON, got other bytes{said}: {error}") from None


def value_from(data: bytes, kind: Any, content_type: str = "") -> Any:
    """JSON bytes as an instance of `kind`. No bytes are null, or a dataclass of defaults."""
    if not data:
        return build(kind, {} if _is_record(typing.get_origin(kind) or kind) else None)
    try:
        return build(kind, from_json(data, content_type))
    except RecursionError:
        raise _too_deep() from None


def to_json(value: Any) -> bytes:
    """`value` as compact JSON; dataclasses, enums, times and UUIDs included."""
    try:
        return _ENCODER.encode(value).encode()
    except RecursionError:
        raise OutputError("it is nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        raise OutputError(str(error)) from None


def _plain(value: Any) -> Any:
    """What the JSON encoder cannot do by itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form: {value!r:.80}")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
)


# --- values


def build(kind: Any, value: Any, path: str = "") -> Any:
    """`value`, decoded from JSON, as an instance of the annotation `kind`; else InputError."""
    if kind in _SCALARS or kind is None:
        return _scalar(type(None) if kind is None else kind, value, path)
    if kind in _TEXTS:
        return _text(kind, value, path)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, value, path)
    return _generic(kind, value, path)


def _scalar(kind: type, value: Any, path: str) -> Any:
    if kind is float and type(value) is int:
        return _as_float(value, path)
    if type(value) is not kind:
        raise _expected(_name(kind), value, path)
    return value


def _as_float(value: int, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(path, "expected float, got an integer beyond its range") from None


def _text(kind: type, value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise _expected(f"{kind.__name__} as text", value, path)
    try:
        return _TEXTS[kind](value)
    except ValueError as error:
        raise _wrong(path, f"expected {kind.__name__}: {error}") from None


def _enum(kind: type[Enum], value: Any, path: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
        raise _wrong(path, f"expected one of {choices}, got {value!r:.80}") from None


def _generic(kind: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(kind) or kind
    arguments = typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, value, path)
    if origin is typing.Literal:
        return _literal(arguments, value, path)
    if origin is tuple:
        return _tuple(arguments, value, path)
    if origin in _LISTS:
        element = arguments[0] if arguments else Any
        return _LISTS[origin](_items([element] * _length(value, path), value, path))
    if origin in (dict, Mapping):
        return _mapping(arguments, value, path)
    if _is_record(origin):  # of a generic class, such as Page[int]
        return _dataclass(origin, value, path, arguments)
    return value


def _length(value: Any, path: str) -> int:
    if not isinstance(value, (list, tuple)):
        raise _expected("array", value, path)
    return len(value)


def _items(kinds: Sequence[Any], value: Sequence[Any], path: str) -> list[Any]:
    return [
        build(kind, item, f"{path}[{index}]")
        for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
    ]


def _tuple(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    length = _length(value, path)
    if not arguments or arguments[-1] is Ellipsis:
        return tuple(_items([arguments[0] if arguments else Any] * length, value, path))
    if length != len(arguments):
        raise _wrong(path, f"expected {len(arguments)} items, got {length}")
    return tuple(_items(arguments, value, path))


def _mapping(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise _expected("object", value, path)
    key_kind, kind = arguments or (str, Any)
    return {
        _key(key_kind, key, path): build(kind, item, _join(path, str(key)))
        for key, item in value.items()
    }


def _key(kind: Any, key: str, path: str) -> Any:
    """JSON has texts for keys, whatever the annotation says."""
    if kind is int:
        if str(key).removeprefix("-").isdecimal():
            return int(key)
        raise _wrong(_join(path, str(key)), "expected an int for a key")
    return build(kind, key, _join(path, str(key))) if kind in _TEXTS else key


def _union(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    failures: list[InputError] = []
    for kind in arguments:
        try:
            return build(kind, value, path)
        except InputError as error:
            failures.append(error)
    # Of the alternatives, a record that was filled wrongly tells more than "expected null".
    records = [f for f, kind in zip(failures, arguments, strict=True) if _is_record(kind)]
    if isinstance(value, Mapping) and len(records) == 1:
        raise records[0]
    raise _expected(" or ".join(_name(kind) for kind in arguments), value, path)


def _literal(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if value in choices:
        return value
    raise _wrong(path, f"expected one of {', '.join(map(repr, choices))}, got {value!r:.80}")


# --- dataclasses


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


@lru_cache(maxsize=1024)
def _fields(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """Name -> (annotation, required) of what a dataclass' constructor takes."""
    hints = typing.get_type_hints(kind)
    return {
        f.name: (hints[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in dataclasses.fields(kind)
        if f.init
    }


def _dataclass(kind: type, value: Any, path: str, arguments: tuple[Any, ...] = ()) -> Any:
    if not isinstance(value, Mapping):
        raise _expected(f"object ({kind.__name__})", value, path)
    fields = _fields(kind)
    for name in value:
        if name not in fields:
            raise _wrong(_join(path, str(name)), _unknown(str(name), fields))
    for name, (_, required) in fields.items():
        if required and name not in value:
            raise _wrong(_join(path, name), f"missing, {kind.__name__} needs it")
    bound = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    kinds = {n: _bound(fields[n][0], bound) if bound else fields[n][0] for n in value}
    built = {n: build(kinds[n], item, _join(path, n)) for n, item in value.items()}
    try:
        return kind(**built)
    except (TypeError, ValueError) as error:  # __post_init__ may check more
        raise _wrong(path, str(error)) from error


def _bound(annotation: Any, arguments: Mapping[Any, Any]) -> Any:
    """The annotation with what the parameters of its generic class stand for."""
    if annotation in arguments:
        return arguments[annotation]
    inner = getattr(annotation, "__parameters__", ())
    return annotation[tuple(arguments.get(one, Any) for one in inner)] if inner else annotation


def _unknown(name: str, fields: Iterable[str]) -> str:
    close = get_close_matches(name, list(fields), n=1)
    return f"unknown field, did you mean {close[0]!r}?" if close else "unknown field"


# --- messages


def _name(kind: Any) -> str:
    return _NAMES.get(kind) or getattr(kind, "__name__", None) or str(kind)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _expected(what: str, value: Any, path: str) -> InputError:
    return _wrong(path, f"expected {what}, got {_name(type(value))}")


def _wrong(path: str, description: str) -> InputError:
    return InputError(f"{path or 'input'}: {description}")


def _too_deep() -> InputError:
    return _wrong("", "is nested too deeply")
