"""The submitter's side of the codec: an input as it is sent, an output as it is read.

When the handler is at hand (a decorated function was enqueued), the input is built once as the
handler will get it, so that a wrong field is refused here and not in a worker later.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobmesh.codec import JSON_TYPE, from_json, value_from
from jobmesh.errors import InputError, OutputError
from jobmesh.invocation import Output, Parameters, encode, parameters_of

if TYPE_CHECKING:
    from jobmesh.handlers import JobFunction


def encode_input(
    value: Any, function: JobFunction[..., Any] | None = None, content_type: str = ""
) -> Output:
    """`value` as it is sent; InputError if the handler `function` could not take it."""
    if isinstance(value, Path) and not value.is_file():
        raise InputError(f"input: {value} is not a file")
    try:
        payload = encode(value)
    except OutputError as error:
        raise InputError(f"input: {error}") from None
    if function is not None:
        _check(value, payload, parameters_of(function.spec.function))
    return Output(payload.content, content_type) if content_type else payload


def _check(value: Any, payload: Output, parameters: Parameters) -> None:
    if parameters.input_name is None:
        if value is not None:
            raise InputError("input: the handler takes none")
        return
    if parameters.input_kind in (bytes, Path):
        _check_bytes(value, parameters)
    elif isinstance(payload.content, bytes) and (payload.content or parameters.input_required):
        value_from(payload.content, parameters.input_kind)


def _check_bytes(value: Any, parameters: Parameters) -> None:
    """A handler of bytes or of a file takes both, but no value that would become JSON."""
    if value is None and not parameters.input_required:
        return
    if not isinstance(value, (bytes, bytearray, memoryview, Path)):
        raise InputError(f"input: expected bytes or a pathlib.Path, got {type(value).__name__}")


def decode_output(data: bytes, content_type: str) -> Any:
    """JSON as its value, other bytes as they are, an empty output as None."""
    if content_type.partition(";")[0].strip() == JSON_TYPE:
        return from_json(data, content_type)
    return data or None
