"""What operators do with pools."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from services.mesh.clock import Clock
from services.mesh.errors import EtagMismatch, InvalidField, PoolExists, PoolNotFound
from services.scaler.domain.pool import Hold, PoolRecord, PoolSpec
from services.scaler.ports import PoolStore

log = logging.getLogger(__name__)

#: How often a change without an etag is tried again on a record that somebody else just changed.
TRIES = 8


class Pools:
    """Create, change, delete, list; each change is one conditional write."""

    def __init__(self, store: PoolStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def create(self, spec: PoolSpec) -> PoolRecord:
        """Make a pool. One that stands there with the same content is as good."""
        check(spec)
        created = await self._store.create(spec)
        if created is not None:
            log.info("pool created", extra={"action": "pool_created", "type": spec.type})
            return created
        existing = await self.get(spec.type)
        if existing.spec != spec:
            raise PoolExists(spec.type)
        return existing

    async def get(self, type_: str) -> PoolRecord:
        record = await self._store.get(type_)
        if record is None:
            raise PoolNotFound(type_)
        return record

    async def page(self, after: str, size: int) -> tuple[list[PoolRecord], bool]:
        """Pools by type, after the one named; and whether there are more."""
        rest = [record for record in await self._store.all() if record.type > after]
        return rest[:size], len(rest) > size

    async def update(
        self, type_: str, change: Callable[[PoolSpec], PoolSpec], etag: str
    ) -> PoolRecord:
        """Change what is wanted of a pool; with an etag, only if nobody else did since."""

        def changed(record: PoolRecord) -> PoolRecord:
            if etag and etag != record.etag:
                raise EtagMismatch("pool", type_)
            spec = change(record.spec)
            check(spec)
            return replace(record, spec=spec)

        record = await self._rewrite(type_, changed)
        log.info("pool updated", extra={"action": "pool_updated", "type": type_})
        return record

    async def set_desired(
        self, type_: str, desired: int | None, lasting: timedelta | None
    ) -> PoolRecord:
        """Fix the count by hand, for a while or for good; None gives it back to the rule."""
        until = self._clock.now() + lasting if lasting is not None else None
        hold = None if desired is None else Hold(desired, until)
        record = await self._rewrite(type_, lambda record: replace(record, hold=hold))
        extra = {"action": "pool_hold_set", "type": type_, "desired": desired}
        log.info("pool held" if hold else "pool given back", extra=extra)
        return record

    async def delete(self, type_: str) -> None:
        """Forget a pool; the acting Scaler then drains the workers that were started for it."""
        if not await self._store.delete(type_):
            raise PoolNotFound(type_)
        log.info("pool deleted", extra={"action": "pool_deleted", "type": type_})

    async def _rewrite(self, type_: str, change: Callable[[PoolRecord], PoolRecord]) -> PoolRecord:
        for _ in range(TRIES):
            record = await self.get(type_)
            changed = change(record)
            if changed == record:
                return record
            written = await self._store.replace(changed)
            if written is not None:
                return written
        raise EtagMismatch("pool", type_)


def check(spec: PoolSpec) -> None:
    """Rules over several fields, on the values that count after defaults and masks."""
    if spec.max_workers < spec.min_workers:
        raise InvalidField(
            "spec.max_workers", f"must not be smaller than min_workers ({spec.min_workers})"
        )
