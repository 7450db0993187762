"""Page tokens and resume tokens: opaque to callers, checked when they come back. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence

from services.mesh.errors import PageTokenInvalid, ResumeTokenInvalid
from services.mesh.jobs import ids
from services.mesh.jobs.model import Position

_DIGEST = 8
#: Of the tokens of watches by filter; a later form gets another number.
PLACES_VERSION = 1
MAX_INT8 = 2**63
#: Of a job; what follows it is still a number that a shard can be asked about.
MAX_VERSION = 2**31 - 2


def page_token(last: str, query: bytes) -> str:
    """Where a list goes on: after `last`, for the same query only."""
    return _pack({"after": last, "query": _digest(query)})


def read_page_token(token: str, query: bytes) -> str:
    """What `page_token` was given; PageTokenInvalid for anything else. Empty stays empty."""
    if not token:
        return ""
    data = _unpack(token)
    after = data.get("after") if data is not None and data.get("query") == _digest(query) else None
    if not isinstance(after, str):
        raise PageTokenInvalid
    return after


def read_job_page_token(token: str, query: bytes) -> str:
    """Like `read_page_token`, for lists that go on after a job id."""
    after = read_page_token(token, query)
    try:
        return str(ids.parse(after)) if after else ""
    except ValueError as error:
        raise PageTokenInvalid from error


class ResumeTokens:
    """The tokens of one watch: what was delivered of each job, in the order of their ids."""

    def __init__(self, job_ids: Sequence[str]) -> None:
        self._ordered = sorted(job_ids)
        self._digest = ""

    def token(self, versions: Mapping[str, int]) -> str:
        """Where the watch goes on."""
        self._digest = self._digest or _jobs_digest(self._ordered)
        seen = [versions.get(job_id, 0) for job_id in self._ordered]
        return _pack({"jobs": self._digest, "seen": seen})


def resume_token(job_ids: Sequence[str], versions: Mapping[str, int]) -> str:
    """Where a watch goes on, once."""
    return ResumeTokens(job_ids).token(versions)


def read_resume_token(token: str, job_ids: Sequence[str]) -> dict[str, int]:
    """The versions delivered so far; ResumeTokenInvalid if it is for other jobs, or no token."""
    ordered = sorted(job_ids)
    data = _unpack(token)
    if data is None or data.get("jobs") != _jobs_digest(ordered):
        raise ResumeTokenInvalid
    seen = data.get("seen")
    if not isinstance(seen, list) or len(seen) != len(ordered):
        raise ResumeTokenInvalid
    if not all(type(version) is int and 0 <= version <= MAX_VERSION for version in seen):
        raise ResumeTokenInvalid
    return dict(zip(ordered, seen, strict=True))


def filter_digest(identity: bytes) -> str:
    """What a token of a watch by filter is bound to."""
    return _digest(identity)


def places_token(digest: str, places: Mapping[str, Position]) -> str:
    """Where a watch by filter goes on: its place in the order of each shard."""
    at = {shard: [place.xid, place.number] for shard, place in places.items()}
    return _pack({"v": PLACES_VERSION, "filter": digest, "at": at})


def read_places_token(token: str, digest: str) -> dict[str, Position]:
    """The places; ResumeTokenInvalid if it is for another filter, or no token."""
    data = _unpack(token)
    if data is None or data.get("v") != PLACES_VERSION or data.get("filter") != digest:
        raise ResumeTokenInvalid
    at = data.get("at")
    if not isinstance(at, dict) or not at:
        raise ResumeTokenInvalid
    return {shard: _place(pair) for shard, pair in at.items()}


def _place(pair: object) -> Position:
    match pair:
        case [int(xid), int(number)] if 0 <= xid < MAX_INT8 and 0 <= number < MAX_INT8:
            return Position(xid, number)
    raise ResumeTokenInvalid


def _jobs_digest(ordered: Sequence[str]) -> str:
    return _digest(",".join(ordered).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


def _pack(data: Mapping[str, object]) -> str:
    text = json.dumps(data, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _unpack(token: str) -> dict[str, object] | None:
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        data = json.loads(text)
    except (ValueError, binascii.Error, RecursionError):
        return None
    return data if isinstance(data, dict) else None
