"""Where new jobs go when shards fail in every way: elsewhere, nowhere, but never twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from services.mesh.errors import (
    IdempotencyConflict,
    NoHealthyShard,
    OutcomeUnknown,
    ShardUnavailable,
    StaleEpoch,
)
from services.mesh.jobs.ids import bucket_for_key, bucket_of
from services.mesh.jobs.ties import Ties
from services.orchestrator.app.parents import Wish
from services.orchestrator.app.storing import Stored
from tests.unit.orchestrator.submission_fakes import NAMES, Stand, draft


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
