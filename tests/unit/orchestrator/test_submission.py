"""Where new jobs go when shards fail in every way: elsewhere, nowhere, but never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import pytest

from services.mesh.clock import ManualClock
from services.mesh.errors import (
    IdempotencyConflict,
    NoHealthyShard,
    OutcomeUnknown,
    ShardUnavailable,
    StaleEpoch,
)
from services.mesh.jobs.ids import bucket_for_key, bucket_of
from services.mesh.jobs.model import AlikeJobs, Keyed, NewJob, Payload
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Ties
from services.mesh.jobs.topology import BucketMap
from services.mesh.runtime import Readiness
from services.mesh.store.answers import ProbeResult, PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.lookup import Lookup
from services.orchestrator.app.parents import Parents, Wish
from services.orchestrator.app.shards import Shards
from services.orchestrator.app.storing import Stored
from services.orchestrator.app.submission import Draft, Submission
from services.orchestrator.domain.dueness import NOTHING_SOON
from tests.unit.orchestrator.loan_fakes import FakeHands, loans_over

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NAMES = ["s0", "s1", "s2"]


class Shard:
    """A shard that keeps ids, and fails as it is told: before or after it stored them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: set[UUID] = set()
        self.keys: dict[str, UUID] = {}
        self.calls = 0
        self.before: list[Exception | None] = []
        self.after: list[Exception | None] = []
        self.wait: Callable[[], None] = lambda: None
        self.until: Callable[[], Awaitable[object]] | None = None
        self.reached = asyncio.Event()

    def abandon(self) -> None: ...

    async def put_jobs(self, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        self.calls += 1
        self.reached.set()
        if self.until is not None:
            await self.until()
        if self.before and (error := self.before.pop(0)):
            raise error
        self.wait()
        results = [self._put(job) for job in jobs]
        if self.after and (error := self.after.pop(0)):
            raise error
        all_new = all(result.outcome is PutOutcome.CREATED for result in results)
        return PutAnswer(results, list, NOW if isinstance(jobs, AlikeJobs) and all_new else None)

    def _put(self, job: NewJob) -> PutResult:
        outcome, job_id = PutOutcome.CREATED, job.id
        if job.idempotency_key:
            job_id = self.keys.setdefault(job.idempotency_key, job.id)
            if job_id != job.id:
                other = job.request_hash == b"other"
                outcome = PutOutcome.CONFLICT if other else PutOutcome.EXISTING
        self.rows.add(job_id)
        return PutResult(outcome, job_id, JobState.SCHEDULED, 1, NOW, NOW, True)


class Silent:
    def __init__(self) -> None:
        self.nudged: list[tuple[str, set[str]]] = []
        self.long: list[set[str]] = []
        self.broken: Exception | None = None

    async def committed(self, shard: str, events: Any) -> None: ...

    async def stored(self, shard: str, names: Any) -> None: ...

    async def due(
        self, shard: str, types: Any, soon: Any = NOTHING_SOON, long: Any = (), new: bool = False
    ) -> None:
        if self.broken is not None:
            raise self.broken
        self.nudged.append((shard, set(types)))
        self.long.append(set(long))

    async def scheduled(self, shard: str, type_: str, next_time: datetime) -> None: ...

    async def cancelled(self, worker_id: str, attempts: Any) -> None: ...


class Map:
    def __init__(self) -> None:
        self.map = BucketMap.even(NAMES)


class Stand:
    def __init__(self) -> None:
        self.stores = {name: Shard(name) for name in NAMES}
        self.shards = Shards(self.stores, ManualClock(NOW), Readiness().require("shards"))  # type: ignore[arg-type]
        self.doubted: list[str] = []
        for name in NAMES:
            self.shards.probed_by(name, partial(self.doubted.append, name))
            self.heal(name)
        self.announcer = Silent()
        self.clock = ManualClock(NOW)
        self.parents = Parents(Lookup(self.shards, Map(), self.announcer), self.shards)  # type: ignore[arg-type]
        self.submission = Submission(
            self.shards,
            Map(),  # type: ignore[arg-type]
            self.announcer,
            self.clock,
            Random(1),
            self.parents,
            loans_over(self.shards, FakeHands()),
        )

    def heal(self, name: str) -> None:
        probe = ProbeResult(NOW, UUID(int=1), 1, True, 1)
        for _ in range(2):
            self.shards.probed(name, probe, 1.0)

    def lose(self, name: str) -> None:
        for _ in range(3):
            self.shards.missed(name, "gone")

    def rows(self) -> list[UUID]:
        return [row for store in self.stores.values() for row in store.rows]

    def slow_down(self, seconds: float) -> None:
        for store in self.stores.values():
            store.wait = partial(self.clock.advance, seconds)

    async def put_alike(self, count: int):
        """As `put`, of jobs that differ in their inputs only: one outcome each."""
        like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
        inputs = [str(number).encode() for number in range(count)]
        return [
            outcome
            for part in await self.submission.alike.put(like, inputs)
            for outcome in (part.stored if isinstance(part.stored, list) else part.stored.keys)
        ]

    async def put_keyed(self, count: int, content: bytes = b"same", keys: Sequence[str] = ()):
        """As `put_alike`, of jobs with keys."""
        like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
        keys = keys or [f"k{number}" for number in range(count)]
        outcomes: dict[int, Any] = {}
        parts = await self.submission.alike.put(
            like, [b"x"] * len(keys), Keyed(keys, [content] * len(keys))
        )
        for part in parts:
            stored = part.stored if isinstance(part.stored, list) else part.stored.keys
            outcomes |= zip(part.places, stored, strict=True)
        return [outcomes[at] for at in range(len(keys))]

    async def put(self, count: int = 1, key: str = "", content: bytes = b"same"):
        return await self.submission.put([draft(key, content) for _ in range(count)])


def draft(key: str = "", content: bytes = b"same") -> Draft:
    def build(job_id: UUID) -> NewJob:
        return NewJob(
            job_id, "n", "echo", idempotency_key=key or None, request_hash=content if key else None
        )

    return Draft("n", ("n", key) if key else None, "echo", build)


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def test_a_lone_job_is_stored_by_the_very_task_that_was_asked_to(stand):
    tasks: set[asyncio.Task[Any] | None] = set()
    for store in stand.stores.values():
        store.wait = lambda: tasks.add(asyncio.current_task())
    await stand.put(1)
    await stand.put_alike(1)
    assert tasks == {asyncio.current_task()}


async def test_a_batch_is_stored_whole_in_one_shard_and_its_type_nudged(stand):
    outcomes = await stand.put(100)
    assert {outcome.shard for outcome in outcomes} == {outcomes[0].shard}
    assert len(stand.rows()) == 100
    assert stand.announcer.nudged == [(outcomes[0].shard, {"echo"})]


async def test_what_took_long_to_be_stored_is_said_to_have_been_due_for_long(stand):
    stand.slow_down(0.25)
    await stand.put()
    await stand.put_alike(2)
    stand.slow_down(0.45)
    await stand.put()
    await stand.put_alike(2)
    assert stand.announcer.long == [set(), set(), {"echo"}, {"echo"}]


async def test_batches_walk_round_the_shards(stand):
    shards = [(await stand.put())[0].shard for _ in range(6)]
    assert sorted(shards) == sorted(NAMES * 2)


async def test_a_certain_failure_sends_an_unkeyed_batch_elsewhere(stand):
    for store in stand.stores.values():
        store.before = [ShardUnavailable(store.name)]
    stand.stores["s2"].before = []
    outcomes = await stand.put(5)
    assert {type(outcome) for outcome in outcomes} == {Stored}
    assert len(stand.rows()) == 5
    assert set(stand.doubted) <= {"s0", "s1"}


async def test_when_every_shard_refuses_the_answer_is_no_healthy_shard(stand):
    for store in stand.stores.values():
        store.before = [ShardUnavailable(store.name)] * 3
    assert [type(outcome) for outcome in await stand.put(2)] == [NoHealthyShard] * 2
    assert stand.rows() == []


async def test_a_shard_that_is_away_is_not_even_asked(stand):
    stand.lose("s0")
    for _ in range(6):
        await stand.put()
    assert stand.stores["s0"].calls == 0


async def test_an_unknown_outcome_is_settled_at_the_same_shard_with_the_same_ids(stand):
    for store in stand.stores.values():
        store.after = [OutcomeUnknown(store.name)]
    outcomes = await stand.put(3)
    assert {type(outcome) for outcome in outcomes} == {Stored}
    assert len(stand.rows()) == 3
    assert sorted(store.calls for store in stand.stores.values()) == [0, 0, 2]


async def test_an_unknown_outcome_that_stays_unknown_is_never_redirected(stand):
    for store in stand.stores.values():
        store.after = [OutcomeUnknown(store.name)] * 2
    outcomes = await stand.put(3)
    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    assert sorted(store.calls for store in stand.stores.values()) == [0, 0, 2]


async def test_unknown_and_then_certainly_away_is_still_unknown(stand):
    for store in stand.stores.values():
        store.after = [OutcomeUnknown(store.name)]
        store.before = [None, ShardUnavailable(store.name)]
    outcomes = await stand.put(3)
    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    assert sum(1 for store in stand.stores.values() if store.calls) == 1


async def test_a_keyed_job_is_refused_rather_than_redirected(stand):
    home = NAMES[bucket_for_key("n", "k") * 3 // 4096]
    stand.lose(home)
    (outcome,) = await stand.put(key="k")
    assert isinstance(outcome, ShardUnavailable)
    assert stand.rows() == []


async def test_a_keyed_jobs_bucket_is_that_of_its_key(stand):
    (outcome,) = await stand.put(key="k")
    assert bucket_of(outcome.result.job_id) == bucket_for_key("n", "k")


async def test_a_key_with_other_content_conflicts_with_the_first_job(stand):
    (first,) = await stand.put(key="k")
    (second,) = await stand.put(key="k", content=b"other")
    assert isinstance(second, IdempotencyConflict)
    assert second.metadata["job_id"] == str(first.result.job_id)


async def test_a_stale_map_is_told_to_the_caller_and_not_redirected(stand):
    for store in stand.stores.values():
        store.before = [StaleEpoch(7)]
    (outcome,) = await stand.put()
    assert isinstance(outcome, StaleEpoch)
    assert stand.rows() == []


async def test_a_mixed_batch_is_answered_item_by_item_in_order(stand):
    home = NAMES[bucket_for_key("n", "k") * 3 // 4096]
    stand.lose(home)
    drafts = [draft(), draft("k"), draft()]
    outcomes = await stand.submission.put(drafts)
    assert [type(outcome) for outcome in outcomes] == [Stored, ShardUnavailable, Stored]


async def test_jobs_that_are_alike_are_stored_in_chunks_on_healthy_shards(stand):
    stand.lose(NAMES[0])
    outcomes = await stand.put_alike(700)
    assert len(outcomes) == len(set(outcomes)) == 700
    assert sorted(len(store.rows) for store in stand.stores.values()) == [0, 200, 500]
    for store in stand.stores.values():
        assert all(NAMES[bucket_of(row) * 3 // 4096] == store.name for row in store.rows)
    assert {types for _, (types,) in stand.announcer.nudged} == {"echo"}


async def test_jobs_that_are_alike_get_ids_in_the_order_in_which_they_were_sent(stand):
    outcomes = await stand.put_alike(50)
    assert outcomes == sorted(outcomes)


async def test_a_certain_failure_sends_jobs_that_are_alike_elsewhere(stand):
    for name in NAMES[:2]:
        stand.stores[name].before = [ShardUnavailable(name)] * 2
    assert len(await stand.put_alike(3)) == 3
    assert len(stand.stores[NAMES[2]].rows) == 3


async def test_jobs_that_are_alike_find_no_healthy_shard(stand):
    for name in NAMES:
        stand.lose(name)
    assert {type(outcome) for outcome in await stand.put_alike(3)} == {NoHealthyShard}


async def test_an_unknown_outcome_of_jobs_that_are_alike_is_never_redirected(stand):
    for store in stand.stores.values():
        store.after = [OutcomeUnknown(store.name)] * 2
    outcomes = await stand.put_alike(3)
    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    assert sorted(store.calls for store in stand.stores.values()) == [0, 0, 2]


async def test_keyed_jobs_that_are_alike_go_where_their_keys_belong(stand):
    outcomes = await stand.put_keyed(100)
    buckets = [bucket_of(UUID(bytes=outcome)) for outcome in outcomes]
    assert buckets == [bucket_for_key("n", f"k{number}") for number in range(100)]
    assert [store.calls for store in stand.stores.values()] == [1, 1, 1]
    for store in stand.stores.values():
        assert all(NAMES[bucket_of(row) * 3 // 4096] == store.name for row in store.rows)


async def test_with_one_tag_they_get_ids_in_the_order_in_which_they_were_sent(stand):
    outcomes = await stand.put_keyed(0, keys=[f"{{tag}}{99 - number}" for number in range(50)])
    assert outcomes == sorted(outcomes)
    assert len({bucket_of(UUID(bytes=outcome)) for outcome in outcomes}) == 1


async def test_they_are_refused_where_their_shard_is_away_and_never_redirected(stand):
    stand.lose("s1")
    outcomes = await stand.put_keyed(100)
    for number, outcome in enumerate(outcomes):
        away = NAMES[bucket_for_key("n", f"k{number}") * 3 // 4096] == "s1"
        assert isinstance(outcome, ShardUnavailable if away else bytes)
    assert stand.stores["s1"].rows == set()


async def test_those_that_are_there_already_are_told_one_by_one_and_nudge_nobody(stand):
    first = await stand.put_keyed(20)
    stand.announcer.nudged.clear()
    again, other = await stand.put_keyed(20), await stand.put_keyed(20, b"other")
    assert [one.result.job_id.bytes for one in again] == first
    assert {one.result.outcome for one in again} == {PutOutcome.EXISTING}
    assert {type(one) for one in other} == {IdempotencyConflict}
    assert stand.announcer.nudged == []
    await stand.put_keyed(21)
    assert len(stand.announcer.nudged) == 1


async def test_an_unknown_outcome_of_theirs_is_settled_where_they_belong(stand):
    for store in stand.stores.values():
        store.after = [OutcomeUnknown(store.name)]
    outcomes = await stand.put_keyed(30)
    assert {type(outcome) for outcome in outcomes} == {bytes}
    assert len(stand.rows()) == 30


def keys_of_each_shard() -> dict[str, str]:
    """A key for each shard, by the shard's name."""
    return {NAMES[bucket_for_key("n", key) * 3 // 4096]: key for key in map(str, range(50))}


async def test_a_defect_of_one_group_is_told_of_its_own_jobs_only(stand):
    keys = keys_of_each_shard()
    stand.stores["s1"].before = [RuntimeError("nobody thought of this")]
    outcomes = await stand.submission.put([draft(keys[name]) for name in NAMES])
    assert [type(outcome) for outcome in outcomes] == [Stored, OutcomeUnknown, Stored]


async def test_nobody_is_answered_before_the_groups_beside_a_defect_are_stored(stand):
    keys, slow = keys_of_each_shard(), asyncio.Event()
    stand.stores["s0"].before = [RuntimeError("nobody thought of this")]
    stand.stores["s1"].until = slow.wait
    putting = asyncio.create_task(stand.submission.put([draft(keys["s0"]), draft(keys["s1"])]))
    await stand.stores["s1"].reached.wait()
    await stand.stores["s0"].reached.wait()
    assert not putting.done()
    slow.set()
    assert [type(outcome) for outcome in await putting] == [OutcomeUnknown, Stored]


async def test_a_defect_of_one_chunk_is_told_of_its_own_jobs_only(stand):
    stand.stores["s1"].before = [RuntimeError("nobody thought of this")]
    outcomes = await stand.put_alike(1200)
    failed = [outcome for outcome in outcomes if isinstance(outcome, OutcomeUnknown)]
    assert len(outcomes) - len(failed) == len(stand.rows())
    assert 0 < len(failed) < 1200


@pytest.mark.parametrize("put", ["put", "put_alike", "put_keyed"])
async def test_stored_jobs_are_told_as_stored_whatever_becomes_of_the_word_about_them(stand, put):
    stand.announcer.broken = RuntimeError("nobody thought of this")
    outcomes = await getattr(stand, put)(3)
    assert {type(outcome) for outcome in outcomes} <= {Stored, bytes}
    assert len(stand.rows()) == 3


async def test_a_defect_of_tied_jobs_is_told_of_these_only(stand):
    stand.parents.marked = broken
    tied = replace(draft(), wish=Wish("n", Ties(unique_key="u")))
    outcomes = await stand.submission.put([draft(), tied])
    assert [type(outcome) for outcome in outcomes] == [Stored, OutcomeUnknown]


@pytest.mark.parametrize("put", ["put", "put_alike", "put_keyed"])
async def test_a_defect_after_the_write_leaves_open_whether_jobs_are_stored(stand, put, caplog):
    for store in stand.stores.values():
        store.after = [RuntimeError("nobody thought of this")]
    (outcome,) = await getattr(stand, put)(1)
    assert len(stand.rows()) == 1
    assert isinstance(outcome, OutcomeUnknown)
    assert "idempotency key" in outcome.message
    (told,) = [r for r in caplog.records if getattr(r, "action", "") == "put_defect"]
    assert told.exc_info
    assert outcome.metadata["correlation_id"] == told.correlation_id


async def broken(*_: object) -> None:
    raise RuntimeError("nobody thought of this")


@pytest.mark.parametrize("put", ["put", "put_alike", "put_keyed"])
@pytest.mark.parametrize("seed", range(50))
async def test_whatever_fails_no_job_is_ever_stored_twice(seed, put):
    stand, random = Stand(), Random(seed)
    kinds = [None, None, ShardUnavailable, OutcomeUnknown]
    for store in stand.stores.values():
        for failures in (store.before, store.after):
            for _ in range(6):
                kind = random.choice(kinds)
                if failures is store.after and kind is ShardUnavailable:
                    kind = None  # a certain failure after the store kept it would be a lie
                failures.append(kind(store.name) if kind else None)
    outcomes = await getattr(stand, put)(4)
    stored = {outcome.result.job_id for outcome in outcomes if isinstance(outcome, Stored)}
    stored |= {UUID(bytes=outcome) for outcome in outcomes if isinstance(outcome, bytes)}
    unknown = sum(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
    assert stored <= set(stand.rows())
    assert len(stand.rows()) <= len(stored) + unknown
