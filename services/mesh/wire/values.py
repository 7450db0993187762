"""Times, durations, text. Unset on the wire is None in the model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from services.mesh.errors import InvalidField

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def timestamp(time: datetime | None) -> Timestamp | None:
    """A constructor argument: None leaves the field unset."""
    if time is None:
        return None
    seconds, micros = divmod((time - EPOCH) // _MICROSECOND, 1_000_000)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def set_micros(message: Timestamp, micros: int) -> None:
    """Fill a time in place: a message made first and put into its field is copied."""
    message.seconds, rest = divmod(micros, 1_000_000)
    message.nanos = rest * 1000


def set_time(message: Timestamp, time: datetime | None) -> None:
    """Fill a time in place; None leaves it unset."""
    if time is not None:
        # By its parts, which a span has ready: dividing it by a microsecond costs as much again.
        since = time - EPOCH
        message.seconds = since.days * 86_400 + since.seconds
        message.nanos = since.microseconds * 1000


def duration(span: timedelta | None) -> Duration | None:
    """A constructor argument: None leaves the field unset."""
    if span is None:
        return None
    micros = span // _MICROSECOND
    sign = 1 if micros >= 0 else -1
    seconds, rest = divmod(abs(micros), 1_000_000)
    return Duration(seconds=sign * seconds, nanos=sign * rest * 1000)


def datetime_of(time: Timestamp) -> datetime:
    """The instant, to the microsecond. Raises ValueError for one that no calendar has."""
    if not 0 <= time.nanos < 1_000_000_000:
        raise ValueError(f"no such time: {time.nanos} ns after a second")
    try:
        return EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)
    except OverflowError as error:
        raise ValueError(f"no such time: {time.seconds} s after 1970") from error


def storable(text: str) -> str:
    """What a handler said, without the one character that Postgres cannot hold."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def timedelta_of(span: Duration) -> timedelta:
    return timedelta(seconds=span.seconds, microseconds=span.nanos // 1000)


def optional_datetime(message: Message, field: str, within: str = "") -> datetime | None:
    """The time in a field; InvalidField if it is none. `within` is the way to the message."""
    if not message.HasField(field):
        return None
    try:
        return datetime_of(getattr(message, field))
    except ValueError as error:
        raise InvalidField(f"{within}{field}", str(error)) from error


def optional_timedelta(message: Message, field: str) -> timedelta | None:
    return timedelta_of(getattr(message, field)) if message.HasField(field) else None


def micros_of(time: datetime | None) -> int:
    """Microseconds since the epoch, 0 for None: the compact form of bus messages."""
    return 0 if time is None else (time - EPOCH) // _MICROSECOND


def datetime_of_micros(micros: int) -> datetime | None:
    return EPOCH + timedelta(microseconds=micros) if micros else None


def id_texts(ids: bytes) -> list[str]:
    """Job ids of 16 bytes each, one after the other, as text."""
    text = ids.hex()
    return [
        f"{text[at : at + 8]}-{text[at + 8 : at + 12]}-{text[at + 12 : at + 16]}"
        f"-{text[at + 16 : at + 20]}-{text[at + 20 : at + 32]}"
        for at in range(0, len(text), 32)
    ]
