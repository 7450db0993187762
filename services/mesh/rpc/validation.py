"""The rules that stand in the contract (`buf.validate`), checked on messages as they come in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from protovalidate import EvaluationError, Validator

from services.mesh.errors import FieldViolation, InvalidField

#: What these may hold, either way, by their definition.
_MOST_SECONDS = {
    "google.protobuf.Duration": 315_576_000_000,
    "google.protobuf.Timestamp": 253_402_300_799,
}


class Rules:
    """Checks messages against their own rules; about ten microseconds for a small message.

    One instance per process: it compiles the rules of a message type once.
    """

    def __init__(self) -> None:
        self._validator = Validator()

    def check(self, message: Message) -> None:
        """Raise InvalidField, with every broken rule, unless the message is valid."""
        broken = self.violations(message)
        if broken:
            raise InvalidField.of(broken)

    def violations(self, message: Message, prefix: str = "") -> tuple[FieldViolation, ...]:
        """What is wrong with one item of a batch; `prefix` says where it stands ("items[3]")."""
        try:
            broken = self._validator.collect_violations(message)
        except EvaluationError as error:
            return _not_evaluated(message, prefix, str(error))
        return tuple(_told(violation.proto, prefix) for violation in broken) if broken else ()


def _not_evaluated(message: Message, prefix: str, why: str) -> tuple[FieldViolation, ...]:
    """A rule over several fields cannot be computed with a time or duration beyond what these
    messages may hold: name those. The sender's mistake, whatever it is.
    """
    absurd = tuple(
        FieldViolation(f"{prefix}{path}" if prefix else path.removeprefix("."), "is out of range")
        for path in _absurd(message)
    )
    return absurd or (FieldViolation(prefix, why),)


def _absurd(message: Message, path: str = "") -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for place, one in enumerate(value) if field.is_repeated else ((None, value),):
            step = f"{path}.{field.name}" + ("" if place is None else f"[{place}]")
            most = _MOST_SECONDS.get(field.message_type.full_name)
            if most is None:
                yield from _absurd(one, step)
            elif abs(one.seconds) > most or abs(one.nanos) >= 1_000_000_000:
                yield step


def _told(violation: Any, prefix: str = "") -> FieldViolation:
    elements = violation.field.elements if violation.has_field("field") else ()
    path = "".join(_step(element) for element in elements)
    whole = f"{prefix}{path}" if prefix else path.removeprefix(".")
    text = f"key {violation.message}" if violation.for_key else violation.message
    return FieldViolation(whole, text, violation.rule_id)


def _step(element: Any) -> str:
    """One step of a field path: `.name`, `.name[3]` or `.labels["key"]`."""
    subscript = element.subscript
    if subscript is None:
        return f".{element.field_name}"
    key = f'"{subscript.value}"' if isinstance(subscript.value, str) else subscript.value
    return f".{element.field_name}[{key}]"
