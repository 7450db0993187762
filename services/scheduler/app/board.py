"""Where word of due work arrives, and from where it goes on to the other schedulers.

Two kinds of word: what was *heard* by a nudge reached every scheduler, so it is never passed on;
what was *found* here (by a timer, a tick, a sweep, a rescue, a schedule) is known to nobody else,
and is passed on once if there is no credit here to act on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.credit import CreditBook
from services.scheduler.domain.flags import DueFlags
from services.scheduler.domain.word import Word
from services.scheduler.ports import Broker

log = logging.getLogger(__name__)


class DueBoard:
    """The due flags with their doors. `wake` is called when there may be something to claim."""

    def __init__(self, flags: DueFlags, book: CreditBook, broker: Broker) -> None:
        self.flags, self.book = flags, book
        self._broker = broker
        self._shards: frozenset[str] = frozenset()
        self._paused: set[str] = set()
        self.wake: Callable[[], None] = lambda: None
        #: Whether it is known which types are paused. Before that nothing may be claimed.
        self.knows_pauses: Callable[[], bool] = lambda: True
        #: Told of a type that there is word of work of, and no credit for.
        self.on_unserved: Callable[[str], None] = lambda type_: None
        #: Told of a type and a shard that may have work which has been due for long.
        self.on_long_due: Callable[[str, str], None] = lambda type_, shard: None
        #: Told of work that was heard to be due in a moment.
        self.on_soon: Callable[[Word], None] = lambda word: None

    def serve(self, shards: Iterable[str]) -> None:
        """Listen to word about these shards only."""
        self._shards = frozenset(shards)

    # --- word comes in

    def heard(self, word: Word) -> None:
        """A nudge came. One about a shard we do not know is for others."""
        if word.shard not in self._shards:
            return
        if not word.is_due:
            self.on_soon(word)
            return
        for type_ in word.types:
            self.flags.raise_(
                type_, word.shard, told=True, long_due=word.long_due, nudge=word.number
            )
            if word.long_due:
                self.on_long_due(type_, word.shard)
        unserved = [type_ for type_ in word.types if not self.has_credit(type_)]
        if len(unserved) < len(word.types):
            self.wake()
        for type_ in unserved:
            self.on_unserved(type_)

    def found(self, shard: str, types: Iterable[str], *, long_due: bool = False) -> None:
        """We saw due work ourselves; `long_due`: or put back what was due before."""
        for type_ in types:
            self.flags.raise_(type_, shard, told=False, long_due=long_due)
            if long_due:
                self.on_long_due(type_, shard)
        self.wake()

    # --- and goes out

    async def tell(self, being_claimed: Collection[tuple[str, str]]) -> int:
        """Pass on what only we know, have no credit for and are not claiming; how many types."""

        def keeps(type_: str, shard: str) -> bool:
            if type_ in self._paused or (type_, shard) in being_claimed:
                return True
            return self.book.credit_of(type_) > 0

        told = 0
        for (shard, long_due), types in self.flags.untold(keeps).items():
            try:
                await self._broker.nudge(shard, types, long_due=long_due)
                told += len(types)
            except DependencyUnavailable:
                # The next tick finds them again.
                extra = {"action": "nudge_failed", "shard": shard, "count": len(types)}
                log.debug("could not pass due work on", extra=extra)
        return told

    def has_credit(self, type_: str) -> bool:
        return self.book.credit_of(type_) > 0 and type_ not in self._paused

    # --- paused types

    @property
    def paused(self) -> frozenset[str]:
        return frozenset(self._paused)

    def pause(self, type_: str) -> None:
        """Claim no more jobs of this type."""
        self._paused.add(type_)

    def resume(self, type_: str) -> None:
        self._paused.discard(type_)
        self.wake()
