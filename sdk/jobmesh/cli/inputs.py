"""The input of a job as it is given on a command line: JSON text, @file, or - for stdin."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from jobmesh.codec import JSON_TYPE, from_json
from jobmesh.errors import InputError

#: Files up to this size travel with the job; larger ones are uploaded.
INLINE_FILE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Given:
    """What to submit, and its media type where the content does not say it."""

    content: bytes | Path | None
    content_type: str = ""


def read_input(text: str | None) -> Given:
    """InputError says what was expected."""
    if text is None:
        return Given(None)
    if text == "-":
        data = sys.stdin.buffer.read()
        return Given(data, _media_type(data))
    if text.startswith("@"):
        return _from_file(Path(text[1:]))
    data = text.encode()
    try:
        from_json(data)
    except InputError as error:
        raise InputError(
            f"--input: not JSON ({error.message.rpartition(': ')[2]}) — "
            "quote a string as '\"text\"', or pass a file as @path"
        ) from None
    return Given(data, JSON_TYPE)


def _from_file(path: Path) -> Given:
    try:
        size = path.stat().st_size
        if size > INLINE_FILE_BYTES:
            return Given(path)
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"--input: cannot read {path}: {error.strerror}") from None
    from mimetypes import guess_type

    guessed, _ = guess_type(path.name)
    return Given(data, guessed or _media_type(data))


def _media_type(data: bytes) -> str:
    """JSON if it is JSON; what else it may be is the handler's affair."""
    try:
        from_json(data)
    except InputError:
        return ""
    return JSON_TYPE
