"""Buckets, shards and their health: where a job goes. Pure; the Orchestrator keeps the map in etcd.

A job's bucket is fixed for life; which shard holds a bucket may change, and each change raises the
map's epoch. A keyed job's bucket is a function of its key, so it can only go to one shard. Un-keyed
jobs go wherever it is best: a whole chunk to one healthy shard, because batches that stay whole are
what makes the path fast.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from functools import cached_property
from itertools import groupby
from random import Random
from typing import TypeVar

from services.mesh.jobs.ids import BUCKETS, bucket_for_key
from services.mesh.jobs.record import record

CHUNK = 500

T = TypeVar("T")


@unique
class ShardState(Enum):
    """What the operators decided about a shard, as opposed to its health."""

    ACTIVE = "active"
    DRAINING = "draining"
    """Takes no un-keyed job; its buckets are on their way to other shards."""
    QUARANTINED = "quarantined"
    """Came back with an older past (another incarnation); not used until an operator says so."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard in the map. Where it listens is configuration, not topology."""

    name: str
    state: ShardState = ShardState.ACTIVE
    incarnation: str | None = None


@dataclass(frozen=True)
class BucketMap:
    """Which shard holds which bucket. Immutable: a change makes a new map with a higher epoch."""

    epoch: int
    shards: tuple[Shard, ...]
    owners: tuple[int, ...] = field(repr=False)
    """For each bucket the index of its shard in `shards`."""

    def __post_init__(self) -> None:
        names = [shard.name for shard in self.shards]
        if len(set(names)) != len(names):
            raise ValueError("two shards have the same name")
        if len(self.owners) != BUCKETS:
            raise ValueError(f"a map has {BUCKETS} buckets, not {len(self.owners)}")
        if any(not 0 <= owner < len(self.shards) for owner in self.owners):
            raise ValueError("a bucket belongs to a shard that is not in the map")

    @classmethod
    def even(cls, names: Sequence[str], epoch: int = 1) -> BucketMap:
        """The first map: all shards hold the same number of buckets, give or take one."""
        if not names:
            raise ValueError("a map needs at least one shard")
        owners = tuple(bucket * len(names) // BUCKETS for bucket in range(BUCKETS))
        return cls(epoch, tuple(Shard(name) for name in names), owners)

    def shard_of(self, bucket: int) -> str:
        """The name of the shard that holds `bucket`."""
        return self.shards[self.owners[bucket]].name

    def buckets_of(self, name: str) -> tuple[int, ...]:
        """The buckets of one shard, in order."""
        return self._held.get(name, ())

    def with_moved(self, buckets: Iterable[int], to: str) -> BucketMap:
        """The map after `buckets` moved to shard `to`."""
        target = self._index(to)
        moved = set(buckets)
        owners = tuple(target if b in moved else owner for b, owner in enumerate(self.owners))
        return replace(self, epoch=self.epoch + 1, owners=owners)

    def with_shard(self, shard: Shard) -> BucketMap:
        """The map after `shard` was added (without buckets), or changed its state."""
        shards = tuple(shard if known.name == shard.name else known for known in self.shards)
        if shard not in shards:
            shards = (*shards, shard)
        return replace(self, epoch=self.epoch + 1, shards=shards)

    def to_json(self) -> str:
        """The form in etcd: the owners as runs of [shard index, length]."""
        runs = [[owner, sum(1 for _ in run)] for owner, run in groupby(self.owners)]
        shards = [
            {"name": s.name, "state": s.state.value, "incarnation": s.incarnation}
            for s in self.shards
        ]
        return json.dumps({"epoch": self.epoch, "shards": shards, "runs": runs})

    @classmethod
    def from_json(cls, text: str | bytes) -> BucketMap:
        """Read what `to_json` wrote; anything else is a ValueError."""
        try:
            data = json.loads(text)
            shards = tuple(
                Shard(str(s["name"]), ShardState(s["state"]), s.get("incarnation"))
                for s in data["shards"]
            )
            owners = tuple(owner for owner, length in data["runs"] for _ in range(length))
            return cls(int(data["epoch"]), shards, owners)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a bucket map: {error}") from error

    @cached_property
    def _held(self) -> dict[str, tuple[int, ...]]:
        held: dict[str, list[int]] = {shard.name: [] for shard in self.shards}
        for bucket, owner in enumerate(self.owners):
            held[self.shards[owner].name].append(bucket)
        return {name: tuple(buckets) for name, buckets in held.items()}

    def _index(self, name: str) -> int:
        for index, shard in enumerate(self.shards):
            if shard.name == name:
                return index
        raise ValueError(f"no shard {name!r} in the map")


@record
class Group:
    """Jobs that go to one shard in one statement: their places in the request, and a bucket for
    each.
    """

    shard: str
    items: tuple[int, ...]
    buckets: tuple[int, ...]
    keyed: bool
    """Keyed jobs are never redirected."""


@record
class Placement:
    """Where the jobs of one request go."""

    groups: tuple[Group, ...]
    homeless: tuple[int, ...]
    """Un-keyed jobs for which no shard is healthy."""


def keyed_groups(bucket_map: BucketMap, namespace: str, keys: Sequence[str]) -> list[Group]:
    """Where jobs with these idempotency keys go, healthy or not."""
    return _at_home(bucket_map, ((i, bucket_for_key(namespace, k)) for i, k in enumerate(keys)))


def place(
    bucket_map: BucketMap,
    healthy: Collection[str],
    keys: Sequence[tuple[str, str] | None],
    turn: int,
    random: Random,
) -> Placement:
    """Place the jobs of one request; `keys` holds (namespace, idempotency key) or None for each.

    `turn` is the caller's count of requests: it walks un-keyed chunks round the healthy shards.
    """
    free = [item for item, key in enumerate(keys) if key is None]
    keyed = ((item, bucket_for_key(*key)) for item, key in enumerate(keys) if key is not None)
    groups = _at_home(bucket_map, keyed)
    targets = takers(bucket_map, healthy)
    if not targets:
        return Placement(tuple(groups), tuple(free))
    for offset, chunk in enumerate(_chunks(free)):
        shard = targets[(turn + offset) % len(targets)]
        buckets = random.choices(bucket_map.buckets_of(shard), k=len(chunk))
        groups.append(Group(shard, tuple(chunk), tuple(buckets), keyed=False))
    return Placement(tuple(groups), ())


def _at_home(bucket_map: BucketMap, items: Iterable[tuple[int, int]]) -> list[Group]:
    """Keyed jobs by the shards that hold their buckets."""
    members: dict[str, list[tuple[int, int]]] = {}
    for item, bucket in items:
        members.setdefault(bucket_map.shard_of(bucket), []).append((item, bucket))
    return [
        Group(shard, tuple(i for i, _ in chunk), tuple(b for _, b in chunk), keyed=True)
        for shard, of_shard in members.items()
        for chunk in _chunks(of_shard)
    ]


def free_buckets(bucket_map: BucketMap, shard: str, count: int, random: Random) -> list[int]:
    """A bucket of the shard for each of so many un-keyed jobs."""
    held = bucket_map.buckets_of(shard)
    # One draw for all; four bytes each, so that the remainder favours no bucket noticeably.
    drawn = memoryview(random.randbytes(4 * count)).cast("I")
    return [held[number % len(held)] for number in drawn]


def takers(bucket_map: BucketMap, healthy: Collection[str]) -> list[str]:
    """The shards that may be given un-keyed jobs."""
    return [
        shard.name
        for shard in bucket_map.shards
        if shard.state is ShardState.ACTIVE
        and shard.name in healthy
        and bucket_map.buckets_of(shard.name)
    ]


def _chunks(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
