"""Buckets and shards: even maps, epochs that grow, whole batches, and health with hysteresis."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.health import (
    FAILURES_TO_LEAVE,
    SUCCESSES_TO_RETURN,
    Health,
    ShardHealth,
)
from services.mesh.jobs.ids import BUCKETS, bucket_for_key
from services.mesh.jobs.topology import CHUNK, BucketMap, Shard, ShardState, place, takers

NAMES = ("s0", "s1", "s2")
MAP = BucketMap.even(NAMES)
COUNTS = st.integers(1, 20)
MOVES = st.lists(
    st.tuples(st.sets(st.integers(0, BUCKETS - 1), max_size=50), st.sampled_from(NAMES)), max_size=5
)


@given(COUNTS)
def test_the_first_map_is_even(count):
    names = [f"s{n}" for n in range(count)]
    sizes = [len(BucketMap.even(names).buckets_of(name)) for name in names]
    assert sum(sizes) == BUCKETS
    assert max(sizes) - min(sizes) <= 1


@given(MOVES)
def test_moved_buckets_belong_to_their_new_shard_and_the_epoch_grows(moves):
    bucket_map = MAP
    for buckets, to in moves:
        moved = bucket_map.with_moved(buckets, to)
        assert moved.epoch == bucket_map.epoch + 1
        changed = {b for b in range(BUCKETS) if moved.owners[b] != bucket_map.owners[b]}
        assert changed <= buckets
        assert all(moved.shard_of(bucket) == to for bucket in buckets)
        bucket_map = moved


@given(MOVES)
def test_every_bucket_has_exactly_one_shard(moves):
    bucket_map = MAP
    for buckets, to in moves:
        bucket_map = bucket_map.with_moved(buckets, to)
    held = [bucket for name in NAMES for bucket in bucket_map.buckets_of(name)]
    assert sorted(held) == list(range(BUCKETS))


@given(MOVES)
def test_maps_read_back_from_json(moves):
    bucket_map = MAP.with_shard(Shard("s3", ShardState.DRAINING, "abc"))
    for buckets, to in moves:
        bucket_map = bucket_map.with_moved(buckets, to)
    assert BucketMap.from_json(bucket_map.to_json()) == bucket_map


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"epoch": 1, "shards": [{"name": "a", "state": "active"}], "runs": [[0, 4095]]}',
        '{"epoch": 1, "shards": [{"name": "a", "state": "active"}], "runs": [[1, 4096]]}',
        '{"epoch": 1, "shards": [{"name": "a", "state": "gone"}], "runs": [[0, 4096]]}',
    ],
)
def test_text_that_is_no_map_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the messages are those of several readers
        BucketMap.from_json(text)


def test_a_map_without_shards_or_with_twins_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        BucketMap.even([])
    with pytest.raises(ValueError, match="same name"):
        BucketMap.even(["a", "a"])


def test_a_new_shard_holds_nothing_and_a_known_one_changes_its_state():
    grown = MAP.with_shard(Shard("s3"))
    assert grown.buckets_of("s3") == ()
    drained = grown.with_shard(Shard("s1", ShardState.DRAINING))
    assert [shard.name for shard in drained.shards] == ["s0", "s1", "s2", "s3"]
    assert drained.epoch == MAP.epoch + 2
    assert takers(drained, {"s0", "s1", "s2", "s3"}) == ["s0", "s2"]


# --- placement

KEYS = st.lists(st.none() | st.tuples(st.just("n"), st.text("abc", max_size=3)), max_size=60)
HEALTHY = st.sets(st.sampled_from(NAMES))


@given(KEYS, HEALTHY, st.integers(0, 100), st.integers(0, 1 << 32).map(Random))
def test_every_job_is_placed_exactly_once_in_a_bucket_of_its_shard(keys, healthy, turn, random):
    placement = place(MAP, healthy, keys, turn, random)
    items = [item for group in placement.groups for item in group.items]
    assert sorted([*items, *placement.homeless]) == list(range(len(keys)))
    for group in placement.groups:
        assert len(group.items) == len(group.buckets) <= CHUNK
        assert all(MAP.shard_of(bucket) == group.shard for bucket in group.buckets)
        assert group.keyed or group.shard in healthy


@given(KEYS, HEALTHY, HEALTHY, st.integers(0, 100))
def test_where_a_keyed_job_goes_depends_on_its_key_alone(keys, healthy, other, turn):
    for group in place(MAP, healthy, keys, turn, Random(1)).groups:
        for item, bucket in zip(group.items, group.buckets, strict=True):
            key = keys[item]
            assert group.keyed == (key is not None)
            if key is not None:
                assert bucket == bucket_for_key(*key)
    keyed = [
        (group.shard, group.items, group.buckets)
        for group in place(MAP, other, keys, turn + 1, Random(2)).groups
        if group.keyed
    ]
    again = [
        (group.shard, group.items, group.buckets)
        for group in place(MAP, healthy, keys, turn, Random(1)).groups
        if group.keyed
    ]
    assert keyed == again


def test_a_batch_without_keys_goes_to_one_shard_whole():
    placement = place(MAP, NAMES, [None] * CHUNK, 0, Random(1))
    assert len(placement.groups) == 1


def test_larger_batches_walk_round_the_healthy_shards():
    placement = place(MAP, {"s0", "s2"}, [None] * (4 * CHUNK), 1, Random(1))
    assert [group.shard for group in placement.groups] == ["s2", "s0", "s2", "s0"]


def test_jobs_of_one_batch_spread_over_the_buckets_of_their_shard():
    group = place(MAP, NAMES, [None] * CHUNK, 0, Random(1)).groups[0]
    assert len(set(group.buckets)) > CHUNK // 2


def test_without_a_healthy_shard_jobs_without_keys_are_homeless():
    placement = place(MAP, (), [None, ("n", "k")], 0, Random(1))
    assert placement.homeless == (0,)
    assert [group.items for group in placement.groups] == [(1,)]


# --- health


def probes(*outcomes: bool, start: ShardHealth | None = None) -> ShardHealth:
    health = start or ShardHealth(Health.HEALTHY)
    for ok in outcomes:
        health = health.after_probe(ok)
    return health


def test_a_shard_is_used_once_it_has_answered_twice():
    assert not ShardHealth().usable
    assert not probes(True, start=ShardHealth()).usable
    assert probes(True, True, start=ShardHealth()).usable


def test_one_lost_probe_makes_a_shard_suspect_but_not_away():
    assert probes(False) == ShardHealth(Health.SUSPECT, 1)
    assert probes(False).usable
    assert probes(False, False, True) == ShardHealth(Health.HEALTHY)


def test_three_lost_probes_make_it_away():
    assert probes(False, False, False).health is Health.AWAY


@given(st.lists(st.booleans(), max_size=60))
def test_health_changes_only_after_enough_probes_in_a_row(outcomes):
    health = ShardHealth(Health.HEALTHY)
    for place_, ok in enumerate(outcomes):
        before, health = health, health.after_probe(ok)
        if before.usable and not health.usable:
            streak = outcomes[place_ + 1 - FAILURES_TO_LEAVE : place_ + 1]
            assert streak == [False] * FAILURES_TO_LEAVE
        if health.usable and not before.usable:
            streak = outcomes[place_ + 1 - SUCCESSES_TO_RETURN : place_ + 1]
            assert streak == [True] * SUCCESSES_TO_RETURN


@given(st.lists(st.booleans(), max_size=60))
def test_any_shard_that_keeps_answering_becomes_healthy_and_any_silent_one_away(outcomes):
    health = probes(*outcomes)
    assert probes(*[True] * SUCCESSES_TO_RETURN, start=health).health is Health.HEALTHY
    assert probes(*[False] * FAILURES_TO_LEAVE, start=health).health is Health.AWAY


def test_a_shard_that_flaps_at_every_probe_does_not_come_back():
    away = probes(False, False, False)
    assert not probes(*[True, False] * 20, start=away).usable
