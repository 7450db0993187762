"""Successes in columns: from what workers say to the statement, and from its answer to events.

Nothing here is done per job that can be done per batch: no id becomes an object, no time a date.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from services.mesh.jobs.model import EventColumns
from services.mesh.jobs.record import record
from services.mesh.jobs.reports import Successes
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.arrays import EPOCH_US, Bigints, Blobs, Integers, Keys, Texts
from services.mesh.store.connection import Row

T = TypeVar("T")

#: Marks of the statement `succeed_in_columns`.
_STATE, _CHECKPOINTED, _AWAITED = 15, 16, 32


@record
class SuccessBatch:
    """The successes of one statement, in the order of ids, so that two batches never lock
    crosswise. `order` has the place of each in what was said.
    """

    order: list[int]
    keys: list[bytes]
    fences: list[int]
    workers: list[str]
    params: Mapping[str, object]

    @classmethod
    def of(cls, said: Sequence[Successes]) -> SuccessBatch:
        keys = [key for one in said for key in one.keys]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        keys = [keys[at] for at in order]
        fences = _ordered((one.fences for one in said), order)
        workers = _ordered(([one.worker_id] * len(one) for one in said), order)
        params = {
            "ids": Keys(keys),
            "fences": Integers(fences),
            "workers": Texts(workers),
            "elapsed": Bigints(
                _ordered(([_ms(us) for us in one.elapsed_us] for one in said), order)
            ),
            "outputs": Blobs(_ordered((one.outputs or [None] * len(one) for one in said), order)),
            "output_types": Texts(
                _ordered(([one.content_type or None] * len(one) for one in said), order)
            ),
            "output_refs": Texts([None] * len(keys)),
        }
        return cls(order, keys, fences, workers, params)


def _ms(micros: int) -> int | None:
    return micros // 1000 if micros > 0 else None


def _ordered(columns: Iterable[Sequence[T]], order: Sequence[int]) -> list[T]:
    joined = [item for column in columns for item in column]
    return [joined[at] for at in order]


@record
class Committed:
    """What the statement did: the places in the batch, the events, and checkpoints to forget."""

    places: list[int]
    events: list[EventColumns]
    checkpointed: list[bytes]


def committed(batch: SuccessBatch, rows: Sequence[Row]) -> Committed:
    """The answer of `succeed_in_columns`, a row for each namespace and type."""
    places: list[int] = []
    events: list[EventColumns] = []
    checkpointed: list[bytes] = []
    for row in rows:
        group = _Group(batch, row)
        places += group.places
        events += group.events()
        checkpointed += [batch.keys[at] for at in group.marked(_CHECKPOINTED)]
    return Committed(places, events, checkpointed)


class _Group:
    """The jobs of one namespace and type that were committed."""

    def __init__(self, batch: SuccessBatch, row: Row) -> None:
        self._batch = batch
        self._namespace, self._type, places = row[:3]
        self._count = len(places) // 4
        self.places = [place - 1 for place in self._unpacked("i", places)]
        self._versions, self._attempts = (self._unpacked("i", column) for column in row[3:5])
        self._starts, self._ends = (
            [EPOCH_US + us for us in self._unpacked("q", column)] for column in row[5:7]
        )
        self._marks = self._unpacked("h", row[7])

    def _unpacked(self, kind: str, column: bytes) -> tuple[int, ...]:
        return struct.unpack(f"!{self._count}{kind}", column)

    def marked(self, mark: int) -> list[int]:
        """The places in the batch of those with the mark."""
        return [at for at, marks in zip(self.places, self._marks, strict=True) if marks & mark]

    def events(self) -> list[EventColumns]:
        """The starts that were not recorded before, then the ends."""
        began = [n for n, marks in enumerate(self._marks) if marks & _STATE == JobState.DISPATCHED]
        late = any(marks & _STATE == JobState.SCHEDULED for marks in self._marks)
        ends = self._columns(range(self._count), JobState.SUCCEEDED, Cause.SUCCEEDED, self._ends)
        if late:
            causes = [
                Cause.LATE_COMMIT if marks & _STATE == JobState.SCHEDULED else Cause.SUCCEEDED
                for marks in self._marks
            ]
            ends = replace(ends, causes=causes)
        if any(marks & _AWAITED for marks in self._marks):
            ends = replace(ends, awaited=True)
        starts = self._columns(began, JobState.RUNNING, Cause.STARTED, self._starts, before=1)
        return [starts, ends] if began else [ends]

    def _columns(
        self,
        which: Sequence[int],
        state: JobState,
        cause: Cause,
        times: Sequence[int],
        before: int = 0,
    ) -> EventColumns:
        batch, count = self._batch, len(which)
        at = [self.places[n] for n in which]
        return EventColumns(
            keys=[batch.keys[place] for place in at],
            versions=[self._versions[n] - before for n in which],
            states=[state] * count,
            causes=[cause] * count,
            times_us=[times[n] for n in which],
            attempts=[self._attempts[n] for n in which],
            fences=[batch.fences[place] for place in at],
            namespaces=[self._namespace] * count,
            types=[self._type] * count,
            workers=[batch.workers[place] for place in at],
        )
