"""Edits by field mask."""

from __future__ import annotations

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message


def merge(source: Message, target: Message, mask: FieldMask) -> None:
    """The fields of the mask as `source` has them, over `target`: what is unset is cleared.

    The library leaves a field alone whose parent is unset, so that the last one of a message could
    never be cleared.
    """
    said = type(source)()
    said.CopyFrom(source)
    for path in mask.paths:
        place = said
        for name in path.split(".")[:-1]:
            place = getattr(place, name)
            place.SetInParent()
    mask.MergeMessage(said, target, replace_message_field=True, replace_repeated_field=True)
