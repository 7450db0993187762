"""Schedules: each lives, with all its jobs, in the bucket of its name.

Definitions are checked, and nominal times looked for, in a thread: a long search must not hold up
what passes through this process.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from random import Random
from uuid import UUID

from services.mesh.clock import Clock
from services.mesh.errors import (
    EtagMismatch,
    InvalidField,
    MeshError,
    OutcomeUnknown,
    ScheduleExists,
    ScheduleNotFound,
    ShardUnavailable,
)
from services.mesh.jobs.ids import bucket_for_key, new_job_id
from services.mesh.jobs.model import JobRecord
from services.mesh.jobs.planning import plan, resumed_time, room, times_between
from services.mesh.jobs.preview import Preview, preview
from services.mesh.jobs.schedules import Definition, NewSchedule, SchedulePut, ScheduleRecord
from services.mesh.store.answers import CancelResult
from services.mesh.store.port import ShardStore
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.topology import TopologyKeeper
from services.orchestrator.domain.definitions import check_definition, check_rules, check_time, same
from services.orchestrator.domain.dueness import is_long
from services.orchestrator.ports import Announcer

#: A backfill of more jobs than this, or an edit that makes so many at once, must be meant.
MANY_BACKFILLED, MANY_AT_ONCE = 1000, 20
MOST_BACKFILLED = 50_000
LONGEST_PREVIEW = timedelta(days=5 * 366)
_EDITS = 5


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules by name. `missing` are the shards that did not answer."""

    schedules: list[ScheduleRecord]
    more: bool
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What became of the nominal times of a range."""

    made: int
    waiting: int
    left_out: int


class Schedules:
    """Creates, finds, changes, pauses and deletes schedules, and runs them by hand."""

    def __init__(
        self,
        shards: Shards,
        topology: TopologyKeeper,
        announcer: Announcer,
        clock: Clock,
        random: Random,
    ) -> None:
        self._shards, self._topology, self._announcer = shards, topology, announcer
        self._clock, self._random = clock, random

    async def create(
        self, namespace: str, name: str, build: Callable[[UUID], NewSchedule]
    ) -> ScheduleRecord:
        """A name that is taken by the same definition returns that one: a retry is safe."""
        now_ms = int(self._clock.now().timestamp() * 1000)
        wanted = build(new_job_id(bucket_for_key(namespace, name), now_ms, self._random))
        await asyncio.to_thread(check_definition, wanted.definition, self._clock.now())
        store = self._home(namespace, name)
        outcome, record = await store.put_schedule(wanted)
        if outcome is SchedulePut.EXISTS:
            record = await self.get(namespace, name)
            if not same(record.definition, wanted.definition):
                raise ScheduleExists(name)
        if record is None:
            raise ScheduleNotFound(name)
        await self._tell(store.name, record)
        return record

    async def update(
        self,
        namespace: str,
        name: str,
        etag: str,
        edit: Callable[[ScheduleRecord], Definition],
        *,
        allow_many: bool,
    ) -> ScheduleRecord:
        """Change a definition. Without an etag, edits at the same time all take effect."""
        for _ in range(_EDITS):
            known = await self.get(namespace, name)
            if etag and etag != str(known.version):
                raise EtagMismatch("schedule", name)
            definition = edit(known)
            await asyncio.to_thread(self._check_edit, known, definition, allow_many)
            changed = NewSchedule(known.id, namespace, name, definition, known.paused)
            store = self._home(namespace, name)
            outcome, record = await store.put_schedule(changed, True, known.version)
            if outcome is SchedulePut.REPLACED and record is not None:
                await self._tell(store.name, record)
                return record
            if outcome is SchedulePut.NOT_FOUND:
                raise ScheduleNotFound(name)
        raise EtagMismatch("schedule", name)

    async def trigger(self, namespace: str, name: str) -> tuple[str, JobRecord]:
        """Make one job now: the shard, and the job."""
        store, began = self._home(namespace, name), self._clock.monotonic()
        answer = await store.trigger_schedule(namespace, name)
        if answer is None:
            raise ScheduleNotFound(name)
        await self._announcer.committed(store.name, answer.events)
        await self._tell_due(store.name, answer.type, began)
        try:
            (job,) = await store.get_jobs([answer.job_id])
        except ShardUnavailable as error:
            # It is made. Who hears that the shard was away would make another.
            raise OutcomeUnknown(store.name) from error
        return store.name, job

    async def preview(
        self,
        namespace: str,
        proposed: Definition | str,
        first: datetime | None,
        until: datetime | None,
        limit: int,
    ) -> Preview:
        """Nominal times of a definition, or of the schedule of that name."""
        check_time(first, "from")
        check_time(until, "until")
        begin = first or self._clock.now()
        end = until or begin + LONGEST_PREVIEW
        if end <= begin:
            raise InvalidField("until", "must be after from")
        if end - begin > LONGEST_PREVIEW:
            raise InvalidField("until", "must be at most five years after from")
        definition, most = proposed, limit
        if isinstance(definition, str):
            known = await self.get(namespace, definition)
            definition, left = known.definition, room(known)
            most = limit if left is None else min(limit, left)
        else:
            check_rules(definition.recurrences, "schedule.recurrences")
            check_rules(definition.exclusions, "schedule.exclusions")
            most = min(limit, definition.max_runs or limit)
        found = await asyncio.to_thread(preview, definition, begin, end, most)
        return replace(found, more=found.more and most == limit)

    async def backfill(
        self, namespace: str, name: str, first: datetime, until: datetime, *, allow_many: bool
    ) -> Backfilled:
        """Make the jobs of past nominal times that made none. Safe to repeat."""
        check_time(first, "from")
        if until <= first:
            raise InvalidField("until", "must be after from")
        if until > self._clock.now():
            raise InvalidField("until", "must not be after now: what is to come fires by itself")
        known = await self.get(namespace, name)
        most = MOST_BACKFILLED if allow_many else MANY_BACKFILLED
        count = await asyncio.to_thread(_count, known.definition, first, until, most + 1)
        if count > most:
            hint = "choose a shorter range" if allow_many else "set allow_many to go ahead"
            raise InvalidField("until", f"the range has more than {most} nominal times; {hint}")
        return await self._backfill(namespace, name, first, until)

    async def _backfill(
        self, namespace: str, name: str, first: datetime, until: datetime
    ) -> Backfilled:
        store, further = self._home(namespace, name), first
        made = waiting = left_out = 0
        while True:
            began = self._clock.monotonic()
            answer = await store.backfill_schedule(namespace, name, further, until)
            if answer is None:
                raise ScheduleNotFound(name)
            made, left_out = made + answer.made, left_out + answer.left_out
            waiting += answer.waiting
            await self._announcer.committed(store.name, answer.events)
            await self._stop(answer.cancelled)
            if answer.made:
                await self._tell_due(store.name, answer.type, began)
            if answer.further is None:
                return Backfilled(made, waiting, left_out)
            further = answer.further

    async def get(self, namespace: str, name: str) -> ScheduleRecord:
        record = await self._home(namespace, name).get_schedule(namespace, name)
        if record is None:
            raise ScheduleNotFound(name)
        return record

    async def id_of(self, namespace: str, name: str) -> UUID:
        return (await self.get(namespace, name)).id

    async def page(self, namespace: str, after: str, limit: int) -> SchedulePage:
        names = self._shards.names

        async def one(name: str) -> list[ScheduleRecord] | None:
            try:
                store = self._shards.store(name)
                return await store.list_schedules(namespace, after, limit + 1)
            except MeshError:
                return None

        answers = await asyncio.gather(*(one(name) for name in names))
        missing = [name for name, answer in zip(names, answers, strict=True) if answer is None]
        pages = [answer for answer in answers if answer is not None]
        merged = list(heapq.merge(*pages, key=lambda record: record.name))
        return SchedulePage(merged[:limit], len(merged) > limit, missing)

    async def pause(self, namespace: str, name: str, paused: bool, note: str) -> ScheduleRecord:
        store = self._home(namespace, name)
        record = await store.pause_schedule(namespace, name, paused, note)
        if record is None:
            raise ScheduleNotFound(name)
        await self._tell(store.name, record)
        return record

    async def delete(self, namespace: str, name: str) -> None:
        if not await self._home(namespace, name).delete_schedule(namespace, name):
            raise ScheduleNotFound(name)

    def _check_edit(self, known: ScheduleRecord, wanted: Definition, allow_many: bool) -> None:
        now = self._clock.now()
        check_definition(wanted, now)
        edited = replace(known, definition=wanted, next_time=resumed_time(known, wanted, now))
        if known.paused or allow_many:
            return
        due = len(plan(edited, now).nominal_times)
        if due > MANY_AT_ONCE:
            text = f"{due} or more runs would be made up for at once; set allow_many to go ahead"
            raise InvalidField("schedule.catch_up_policy", text)

    async def _tell(self, shard: str, record: ScheduleRecord) -> None:
        """Its first run may be due before anybody looks."""
        if not record.paused and record.next_time is not None:
            type_ = record.definition.template.type
            await self._announcer.scheduled(shard, type_, record.next_time)

    async def _tell_due(self, shard: str, type_: str, began: float) -> None:
        """Runs were made that are due since then, and that nobody saw until now."""
        long = (type_,) if is_long(self._clock.monotonic() - began) else ()
        await self._announcer.due(shard, (type_,), long=long)

    async def _stop(self, cancelled: Sequence[CancelResult]) -> None:
        for result in cancelled:
            if result.worker_id:
                attempts = [(result.job_id, result.fence)]
                await self._announcer.cancelled(result.worker_id, attempts)

    def _home(self, namespace: str, name: str) -> ShardStore:
        return self._shards.store(self._topology.shard_for_key(namespace, name))


def _count(definition: Definition, first: datetime, until: datetime, most: int) -> int:
    return sum(1 for _ in islice(times_between(definition, first, until), most))
