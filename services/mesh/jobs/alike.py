"""Jobs in a worker's hands that differ in little, in columns (docs/adr/0009)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import overload
from uuid import UUID

from services.mesh.jobs.model import Claimed, Payload


class AlikeClaimed(Sequence[Claimed]):
    """Jobs that one statement handed to one worker, and that differ in their ids and the bytes of
    their inputs only. `like` is any of them.

    A sequence of records that are made when somebody looks; who writes them takes the columns.
    """

    __slots__ = ("inputs", "keys", "like")

    def __init__(self, like: Claimed, keys: Sequence[bytes], inputs: Sequence[bytes]) -> None:
        self.like, self.keys, self.inputs = like, keys, inputs

    @property
    def has_data(self) -> bool:
        """Whether they have inline inputs at all."""
        return self.like.input.data is not None

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> Claimed: ...
    @overload
    def __getitem__(self, at: slice) -> AlikeClaimed: ...
    def __getitem__(self, at: int | slice) -> Claimed | AlikeClaimed:
        if isinstance(at, slice):
            return AlikeClaimed(self.like, self.keys[at], self.inputs[at])
        given = self.like.input
        if self.has_data:
            given = Payload.inline(self.inputs[at], given.content_type)
        return replace(self.like, id=UUID(bytes=self.keys[at]), input=given)
