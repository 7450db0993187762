"""Keeping etcd's history short.

Lock keys are never used again, so every lock leaves history that only a compaction frees. Left to
grow, one late compaction of a million revisions stops the world for most of a minute; one every few
seconds is not felt.
"""

from __future__ import annotations

from collections.abc import Callable

from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.runtime import Counts, Loop

INTERVAL_SECONDS = 10.0
#: Less growth than this is not worth a write.
MIN_REVISIONS = 100


class Compactor(Loop):
    """Compacts up to where the store stood an interval ago, so that no short read is cut off.

    One process of the mesh should do it: `enabled` says whether it is this one. An idle mesh is
    left alone.
    """

    def __init__(
        self,
        client: EtcdClient,
        *,
        enabled: Callable[[], bool] = lambda: True,
        interval: float = INTERVAL_SECONDS,
        min_revisions: int = MIN_REVISIONS,
    ) -> None:
        super().__init__("etcd-compactor", interval)
        self._client = client
        self._enabled = enabled
        self._min_revisions = min_revisions
        self._seen: int | None = None
        self._compacted: int | None = None

    async def run_once(self) -> Counts:
        """Compact if there is enough to forget; how many revisions were forgotten."""
        if not self._enabled():
            self._seen = None
            return {}
        # Any key will do: the answer's header carries the revision of the whole store.
        current = (await self._client.range(b"\0", serializable=True)).header.revision
        target, self._seen = self._seen, current
        if self._compacted is None or current < self._compacted:
            # The first look, or etcd was rebuilt and counts from one again.
            self._compacted = current
        forgotten = target - self._compacted if target is not None else 0
        if target is None or forgotten < self._min_revisions:
            return {}
        await self._client.compact(target)
        self._compacted = target
        return {"revisions": forgotten}
