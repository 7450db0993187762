"""Reading the order of each shard once, for all watches by filter of this process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from services.enqueue.domain.filtering import WatchFilter
from services.enqueue.ports import OrderPage, OrderSource
from services.mesh.errors import MeshError
from services.mesh.jobs.model import Position

log = logging.getLogger(__name__)

#: Readings of one shard are at least this far apart: what happens meanwhile comes as one page.
SPACING_SECONDS = 0.01
#: How soon to look again when an open transaction may hide what a hint told of; doubles.
HIDDEN_SECONDS = 0.02
#: More names than this are not listed in a request: everything is read instead.
MOST_NAMES = 1000


@dataclass(frozen=True, slots=True)
class Selection:
    """What a reading is restricted to. Empty: not at all."""

    namespaces: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def covers(self, other: Selection) -> bool:
        """Whether a reading restricted to this holds all that the other wants."""
        return _covers(self.namespaces, other.namespaces) and _covers(self.types, other.types)


def _covers(have: frozenset[str], wanted: frozenset[str]) -> bool:
    return not have or (bool(wanted) and wanted <= have)


class Wanted:
    """What all watches want together."""

    def __init__(self) -> None:
        self._namespaces: Counter[str] = Counter()
        self._types: Counter[str] = Counter()
        self._of_all_types = 0

    def add(self, wanted: WatchFilter, count: int = 1) -> None:
        """Count a watch, or with -1 take it off."""
        self._namespaces[wanted.namespace] += count
        self._of_all_types += 0 if wanted.types else count
        for type_ in wanted.types:
            self._types[type_] += count
        self._namespaces, self._types = +self._namespaces, +self._types

    def selection(self) -> Selection:
        types = frozenset() if self._of_all_types else frozenset(self._types)
        return Selection(_listable(frozenset(self._namespaces)), _listable(types))

    def among(self, names: Collection[str]) -> bool:
        """Whether names of tenants and types (and others) hold some that are wanted."""
        return any(name in self._namespaces for name in names) and (
            self._of_all_types > 0 or any(name in self._types for name in names)
        )


def _listable(names: frozenset[str]) -> frozenset[str]:
    return names if len(names) <= MOST_NAMES else frozenset()


class ShardTail:
    """The end of one shard's order: every page is published in turn, and nothing is skipped.

    It reads when nudged, and every `reread` seconds since hints may be lost. A shard that is away
    is `lagging`; the tail goes on where it was as soon as it is back.
    """

    def __init__(
        self,
        shard: str,
        source: OrderSource,
        selection: Callable[[], Selection],
        publish: Callable[[OrderPage], None],
        reread: float,
    ) -> None:
        self.shard = shard
        #: Where the next page begins: everything before it was published.
        self.at: Position | None = None
        #: Every transaction before this one was published, of those that had a number lately.
        self.passed = 0
        self.lagging = False
        self._source, self._selection, self._publish = source, selection, publish
        self._reread = reread
        self._wake = asyncio.Event()
        self._beginning = asyncio.Lock()
        self._pause = self._reread
        self._last_read = 0.0

    async def begin(self) -> Position:
        """Where the tail is; the first to ask makes it begin at the present end."""
        async with self._beginning:
            if self.at is None:
                end = (await self._source.page(self.shard, None)).lasting
                # Meanwhile one that resumes may have made it begin, further back.
                return self.begin_at(end)
            return self.at

    def begin_at(self, at: Position) -> Position:
        """Where the tail is; the first to ask makes it begin at a place it knows."""
        if self.at is None:
            self.at = at
            self._wake.set()
        return self.at

    def read_again(self) -> None:
        """Find out anew what was passed: before a crash the shard may have counted further."""
        self.passed = 0
        self.nudge()

    def nudge(self) -> None:
        """There is something new to read."""
        self._pause = HIDDEN_SECONDS
        self._wake.set()

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self._rest()
            await self.read_once()

    async def read_once(self) -> None:
        """Read and publish one page."""
        self._wake.clear()
        if self.at is None:
            return
        self._last_read = asyncio.get_running_loop().time()
        selection = self._selection()
        try:
            page = await self._source.page(
                self.shard, self.at, selection.namespaces, selection.types
            )
        except MeshError as error:
            self._missed(error)
            return
        self.lagging = False
        if not selection.covers(self._selection()):
            self._wake.set()  # somebody came who wants more than was asked for: ask again
            return
        self.at, self.passed = page.lasting, page.next.xid
        self._publish(page)
        self._plan(page)

    def _plan(self, page: OrderPage) -> None:
        """When to read next, unless nudged before."""
        if page.more:
            self._wake.set()
        elif page.next.xid >= page.next_xid:
            self._pause = self._reread
        else:
            self._pause = min(self._pause * 2, self._reread)

    def _missed(self, error: MeshError) -> None:
        if not self.lagging:
            extra = {"action": "tail_lagging", "shard": self.shard}
            log.warning("cannot read the events of %s: %s", self.shard, error, extra=extra)
        self.lagging = True
        self._pause = self._reread

    async def _rest(self) -> None:
        if self.lagging:
            await asyncio.sleep(self._pause / 4)  # nudges do not bring a shard back
            return
        try:
            async with asyncio.timeout(self._pause):
                await self._wake.wait()
        except TimeoutError:
            return
        since = asyncio.get_running_loop().time() - self._last_read
        if since < SPACING_SECONDS:
            await asyncio.sleep(SPACING_SECONDS - since)
