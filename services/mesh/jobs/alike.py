"""Jobs that differ in little, in columns (docs/adr/0009): new ones, and those in a worker's hands.

Each kind is a sequence of records that are made when somebody looks; who writes them takes the
columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import overload
from uuid import UUID

from services.mesh.jobs.model import Claimed, NewJob, Payload
from services.mesh.jobs.record import record


@record
class Keyed:
    """The idempotency keys of jobs that are alike, and the hashes of what was asked for."""

    keys: Sequence[str]
    hashes: Sequence[bytes]

    def at(self, places: Iterable[int]) -> Keyed:
        """Those of some of the jobs."""
        places = list(places)
        return Keyed([self.keys[at] for at in places], [self.hashes[at] for at in places])


class AlikeJobs(Sequence[NewJob]):
    """New jobs, due at once, that differ in their ids, the bytes of their inputs and their
    idempotency keys only; all have such a key, or none has.
    """

    __slots__ = ("inputs", "keyed", "keys", "like")

    def __init__(
        self, like: NewJob, keys: list[bytes], inputs: list[bytes], keyed: Keyed | None = None
    ) -> None:
        self.like, self.keys, self.inputs, self.keyed = like, keys, inputs, keyed

    @property
    def has_data(self) -> bool:
        """Whether they have inline inputs at all."""
        return self.like.input.data is not None

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[NewJob]: ...
    def __getitem__(self, at: int | slice) -> NewJob | Sequence[NewJob]:
        if isinstance(at, slice):
            return self.at(range(len(self))[at])
        given = _payload(self.like.input, self.inputs[at])
        job = replace(self.like, id=UUID(bytes=self.keys[at]), input=given)
        if self.keyed is None:
            return job
        key, request_hash = self.keyed.keys[at], self.keyed.hashes[at]
        return replace(job, idempotency_key=key, request_hash=request_hash)

    def at(self, places: Sequence[int]) -> AlikeJobs:
        """Some of them, in that order."""
        return AlikeJobs(
            self.like,
            [self.keys[at] for at in places],
            [self.inputs[at] for at in places],
            None if self.keyed is None else self.keyed.at(places),
        )


class AlikeClaimed(Sequence[Claimed]):
    """Jobs that one statement handed to one worker, and that differ in their ids and the bytes of
    their inputs only. `like` is any of them.
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
        given = _payload(self.like.input, self.inputs[at])
        return replace(self.like, id=UUID(bytes=self.keys[at]), input=given)


def _payload(like: Payload, data: bytes) -> Payload:
    """The input of one of them."""
    return like if like.data is None else Payload.inline(data, like.content_type)
