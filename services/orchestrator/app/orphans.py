"""Objects that nobody refers to. A shard that is away may do so: then nothing is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from services.mesh.blob.keys import is_input_key, read_output_key
from services.mesh.errors import ShardUnavailable
from services.mesh.store.answers import OutputReference
from services.mesh.store.port import ShardStore
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.domain.orphans import is_orphan

T = TypeVar("T")


class Orphans:
    """Asks every shard, not only the one that a key points to: buckets may move."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def inputs(self, keys: Sequence[str]) -> list[str]:
        """Those of the input keys that no job and no schedule refers to."""
        ours = [key for key in keys if is_input_key(key)]

        async def ask(store: ShardStore) -> set[str]:
            return await store.input_references(ours)

        found = await self._all(ask) if ours else []
        referred = set[str]().union(*found)
        return [key for key in ours if key not in referred]

    async def outputs(self, keys: Sequence[str]) -> list[str]:
        """Those of the output keys that can go."""
        parts = {key: read for key in keys if (read := read_output_key(key)) is not None}

        async def ask(store: ShardStore) -> list[OutputReference]:
            return await store.output_references([read.job_id for read in parts.values()])

        found = await self._all(ask) if parts else []
        jobs = {job.job_id: job for answer in found for job in answer}
        return [key for key, read in parts.items() if is_orphan(key, jobs.get(read.job_id))]

    async def _all(self, ask: Callable[[ShardStore], Awaitable[T]]) -> list[T]:
        answers, missing = await self._lookup.everywhere(ask, self._lookup.all_shards())
        if missing:
            raise ShardUnavailable(missing[0])
        return answers
