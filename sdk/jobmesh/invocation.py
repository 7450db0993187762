"""Calling a handler with what came over the wire, and taking what it returns.

This is the whole of what an executor does with a handler: in an executor process (`invoke`), in
`jobmesh.testing` (that, and `invoke_async`) and in the worker's loop, which takes `decode` and
`encode` by themselves, so that large files are read in threads of its own. Inputs and outputs are
bytes, or a file when they are large. Standard library only.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from jobmesh.codec import BYTES_TYPE, JSON_TYPE, to_json, value_from
from jobmesh.context import Context
from jobmesh.errors import (
    MAX_SNOOZE_SECONDS,
    HandlerError,
    OutputError,
    RetryAfter,
    Snooze,
)

if typing.TYPE_CHECKING:
    from jobmesh.handlers import HandlerSpec

R = typing.TypeVar("R")

INPUT_FILE = "input"


@dataclass(frozen=True, slots=True)
class Output:
    """What a handler returned, ready to be stored. A Path is to be uploaded as a file."""

    content: bytes | Path
    content_type: str


#: Of a handler that returns nothing.
NO_OUTPUT = Output(b"", "")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Which argument of a handler gets what; None where it takes no such thing."""

    input_name: str | None
    input_kind: Any
    input_required: bool
    context_name: str | None


@lru_cache(maxsize=4096)
def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Reads a handler's signature; HandlerError if it asks for what no job has."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise HandlerError(f"handler {name}: cannot resolve an annotation: {error}") from error
    contexts = [p for p in _named(function) if _is_context(hints.get(p.name))]
    others = [p for p in _named(function) if not _is_context(hints.get(p.name))]
    required = [p for p in others if p.default is Parameter.empty]
    if len(contexts) > 1 or len(required) > 1:
        raise HandlerError(
            f"handler {name}: takes at most an input and a parameter annotated jobmesh.Context"
        )
    given = next(iter(required or others), None)
    return Parameters(
        input_name=given.name if given else None,
        input_kind=hints.get(given.name, Any) if given else Any,
        input_required=given is not None and given.default is Parameter.empty,
        context_name=contexts[0].name if contexts else None,
    )


def _is_context(hint: Any) -> bool:
    """`Context`, or `Context | None` of a function that is called without one, too."""
    return hint is Context or set(typing.get_args(hint)) == {Context, type(None)}


def _named(function: Callable[..., Any]) -> list[Parameter]:
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    found = [p for p in signature(function).parameters.values() if p.kind not in variadic]
    for parameter in found:
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise HandlerError(
                f"handler {function.__qualname__}: {parameter.name} must not be positional-only"
            )
    return found


def invoke(spec: HandlerSpec, source: bytes | Path, content_type: str, context: Context) -> Output:
    """Runs a plain handler on an input and returns its output. Lets its exceptions through."""
    if spec.is_async:
        raise HandlerError(f"job {spec.type!r} is async: use invoke_async")
    arguments = decode(spec, source, content_type, context)
    return encode(spec.function(**arguments))


async def invoke_async(
    spec: HandlerSpec, source: bytes | Path, content_type: str, context: Context
) -> Output:
    """Runs an async handler here, a plain one in a thread."""
    if not spec.is_async:
        return await _in_thread(invoke, spec, source, content_type, context)
    arguments = await _decode_async(spec, source, content_type, context)
    return encode(await spec.function(**arguments))


async def _decode_async(
    spec: HandlerSpec, source: bytes | Path, content_type: str, context: Context
) -> dict[str, Any]:
    if isinstance(source, bytes):
        return decode(spec, source, content_type, context)
    # A large file may have to be read: not in the loop that keeps the heartbeat.
    return await _in_thread(decode, spec, source, content_type, context)


async def _in_thread(function: Callable[..., R], *arguments: Any) -> R:
    # Imported where it is used: `import jobmesh` must stay light.
    from asyncio import to_thread

    return await to_thread(function, *arguments)


# --- input


def decode(
    spec: HandlerSpec, source: bytes | Path, content_type: str, context: Context
) -> dict[str, Any]:
    """The arguments a handler is called with."""
    parameters = parameters_of(spec.function)
    arguments: dict[str, Any] = {}
    if parameters.context_name is not None:
        arguments[parameters.context_name] = context
    if parameters.input_name is not None and not _left_out(parameters, source):
        arguments[parameters.input_name] = decode_input(
            parameters.input_kind, source, content_type, context
        )
    return arguments


def _left_out(parameters: Parameters, source: bytes | Path) -> bool:
    """An empty input leaves a parameter that has a default to its default."""
    return source == b"" and not parameters.input_required


def decode_input(kind: Any, source: bytes | Path, content_type: str, context: Context) -> Any:
    """The input as its annotation wants it: a file, bytes, or a value built from JSON."""
    if kind is Path:
        return _as_file(source, context)
    data = source if isinstance(source, bytes) else source.read_bytes()
    if kind is bytes:
        return data
    return value_from(data, kind, content_type)


def _as_file(source: bytes | Path, context: Context) -> Path:
    if isinstance(source, Path):
        return source
    file = context.scratch / INPUT_FILE
    file.write_bytes(source)
    return file


# --- output


def encode(value: Any) -> Output:
    """What a handler returned, as it is stored. A Snooze that it returned is raised."""
    if value is None:
        return NO_OUTPUT
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Output(bytes(value), BYTES_TYPE)
    if isinstance(value, Path):
        return _file_output(value)
    if isinstance(value, Snooze):
        raise value
    return Output(to_json(value), JSON_TYPE)


def _file_output(path: Path) -> Output:
    if not path.is_file():
        raise OutputError(f"the returned path is not a file: {path}")
    from mimetypes import guess_type

    guessed, _ = guess_type(path.name)
    return Output(path, guessed or BYTES_TYPE)


# --- what it raises: the class is the handler's, and so is what goes wrong in it


def wait_of(error: RetryAfter | Snooze) -> float | None:
    """The seconds that it asks to wait; None if they cannot be known.

    Its class may not have called `super().__init__`, or have put something else in their place.
    """
    try:
        seconds = float(error.seconds)
    except Exception:
        return None
    is_usable = isinstance(error, RetryAfter) or 0 <= seconds <= MAX_SNOOZE_SECONDS
    return seconds if is_usable else None


def words_of(error: BaseException) -> str:
    """Its message. A Snooze has one only where it is a failure, for want of a delay."""
    try:
        said = str(error)
    except Exception:
        said = "<unprintable>"
    if not isinstance(error, Snooze):
        return said
    name = type(error).__name__
    return f"no delay from 0 s to 30 days: {name} must call super().__init__(delay): {said}"
