"""The same of jobs that are alike, which travel and are stored in columns."""

from __future__ import annotations

from uuid import UUID

import pytest

from services.mesh.errors import (
    IdempotencyConflict,
    NoHealthyShard,
    OutcomeUnknown,
    ShardUnavailable,
)
from services.mesh.jobs.ids import bucket_for_key, bucket_of
from services.mesh.store.answers import PutOutcome
from tests.unit.orchestrator.submission_fakes import NAMES, Stand


@pytest.fixture
def stand() -> Stand:
    return Stand()


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


async def test_a_wait_for_room_is_not_taken_for_a_slow_shard(stand, monkeypatch):
    """Schedulers would look at everything that has been due for long."""

    async def room(jobs: object) -> None:
        stand.clock.advance(10)

    monkeypatch.setattr(stand.submission.alike._storing._loans, "room", room)
    await stand.put_alike(3)
    assert stand.announcer.long == [set()]
