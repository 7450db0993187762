"""What operators see and do: describe, tick, pause, resume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from services.mesh.errors import ShardNotFound
from services.mesh.lease.port import Registry
from services.scheduler.app.board import DueBoard
from services.scheduler.app.follow import Follower
from services.scheduler.app.keeping import Keeping
from services.scheduler.app.members import Membership
from services.scheduler.domain.views import TickReport, View


class Console:
    """The use cases behind SchedulerService."""

    def __init__(
        self,
        membership: Membership,
        board: DueBoard,
        keepings: Mapping[str, Keeping],
        registry: Registry,
        pauses: Follower,
        recall: Callable[[str], Awaitable[None]],
    ) -> None:
        self._membership, self._board, self._keepings = membership, board, keepings
        self._registry, self._pauses, self._recall = registry, pauses, recall

    def describe(self) -> View:
        kept = [k for k in self._keepings.values() if self._membership.keeps(k.shard)]
        return View(
            scheduler_id=self._membership.member,
            members=sorted(self._membership.members),
            shards=[keeping.view() for keeping in kept],
            parked=self._board.book.parked(),
            paused=sorted(self._board.paused),
        )

    async def tick(self, shards: Collection[str]) -> TickReport:
        """Run every duty of the given shards once, ours or not; empty: of all that answer."""
        for shard in shards:
            if shard not in self._keepings:
                raise ShardNotFound(shard)
        report = TickReport()
        for shard in shards or [k.shard for k in self._keepings.values() if k.open]:
            await self._keepings[shard].tick(report)
        return report

    async def pause(self, type_: str, note: str) -> None:
        """Stop dispatching a type, in the whole mesh; the others learn it from the key."""
        revision = await self._registry.put(self._pauses.prefix + type_, note.encode())
        self._pauses.written(type_, revision)
        await self._recall(type_)

    async def resume(self, type_: str) -> None:
        known = self._pauses.revision(type_)
        await self._registry.delete(self._pauses.prefix + type_)
        self._pauses.deleted(type_, known)
