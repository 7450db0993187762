"""Who looks after which shard: rendezvous hashing over the live schedulers.

Every scheduler computes the same answer from the same members, nobody is asked, and a member that
comes or goes moves only the shards it gains or had. While views differ, a shard may have two
keepers or none for a moment; both are harmless, since every write is conditional and any scheduler
may claim from any shard. The division saves work, it guards nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def keeper_of(shard: str, members: Collection[str]) -> str | None:
    """The member that looks after the shard; None if there are no members."""
    return max(members, key=lambda member: (_weight(shard, member), member), default=None)


def duties_of(member: str, shards: Collection[str], members: Collection[str]) -> frozenset[str]:
    """The shards that `member` looks after."""
    return frozenset(shard for shard in shards if keeper_of(shard, members) == member)


def _weight(shard: str, member: str) -> bytes:
    return hashlib.blake2b(f"{shard}\0{member}".encode(), digest_size=8).digest()


def rank_of(member: str, name: str, members: Collection[str]) -> int:
    """How many members come before this one where only one should go first."""
    weight = (_weight(name, member), member)
    return sum((_weight(name, other), other) > weight for other in members)
