"""What the clients submit: a seeded mix of every kind of job."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jobmesh.retry import Retry
from jobmesh.ties import OnFailure, UniquePolicy

#: Kinds of jobs and their weights.
MIX: Mapping[str, float] = {
    "plain": 34,
    "batch": 4,
    "alike": 3,
    "alike_keyed": 3,
    "keyed": 12,
    "executor": 6,
    "later": 8,
    "flaky": 8,
    "hopeless": 2,
    "long": 7,
    "large": 3,
    "cancelled": 4,
    "expiring": 1,
    "tree": 2,
    "steps": 2,
    "redriven": 2,
    "revived": 2,
    "updated": 3,
    "snoozing": 2,
    "limited": 1,
    "lane": 1,
    "conflict": 2,
    "rivals": 2,
    "crowd": 1,
    "bulk": 1,
}
#: Those that somebody does something to after they were stored.
CHANGED = ("redriven", "revived", "updated", "snoozing")
#: Lots that travel in one message, and how many jobs they have.
SIZES: Mapping[str, int] = {
    "batch": 8,
    "alike": 8,
    "alike_keyed": 8,
    "limited": 6,
    "lane": 6,
    "rivals": 4,
    "crowd": 4,
    "bulk": 5,
}
#: Those of a lot differ in nothing but their inputs and keys, so that they travel and are stored in
#: columns: no label of theirs says their ref, only their input.
ALIKE = ("alike", "alike_keyed")
#: A type of which only so many with the same key may run at once, and how many keys there are.
LIMITED, PER_KEY, LIMIT_KEYS = "turn", 2, 2
#: Another one, of which only so many may run at once whatever their key, or with none.
LANE, LANES = "lane", 3
#: Jobs that want the same unique key: at once in calls of their own, or in one message.
UNIQUE = ("rivals", "crowd")
UNIQUE_KEYS = 2
UNIQUE_POLICIES: tuple[UniquePolicy, ...] = ("keep", "replace", "refuse")
#: What becomes of a job whose parent did not succeed.
POLICIES: tuple[OnFailure, ...] = ("cancel", "run", "fail")
LARGE_BYTES = 40_000


@dataclass(frozen=True, slots=True)
class Recurring:
    """One schedule, and how long each of its runs takes."""

    name: str
    type: str = "tick"
    every: int = 1
    overlap: str = ""
    seconds: float = 0.0


#: Schedules whose runs get in each other's way. Those that all wait take but a little less than the
#: time between two of them, so that their line grows slowly.
OVERLAPPING = (
    Recurring("skips", "nap", overlap="skip", seconds=1.5),
    Recurring("buffers-one", "nap", overlap="buffer_one", seconds=1.5),
    Recurring("buffers-all", "nap", every=2, overlap="buffer_all", seconds=1.8),
    Recurring("cancels-other", "nap", overlap="cancel_other", seconds=1.5),
)
#: What a "steady" job takes: one of a known length, for trials that need to know when it is over.
STEADY_SECONDS = 4.0
#: A type whose pool has no workers unless it is told to: a "forgotten" job surely expires.
POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Change:
    """What a client changes about a job that waits, some seconds after it was stored."""

    after: float
    delay: float
    """Its new time, from then on."""
    priority: int
    mark: str
    """A label that tells this change from others."""


@dataclass(frozen=True, slots=True)
class Order:
    """One submission (a batch is one per item) and what shall become of it."""

    kind: str
    ref: str
    """Its own name, in the label `ref` of the job, and as `tag` in its input: how rows are found
    whose answer was lost.
    """
    namespace: str
    type: str
    input: Mapping[str, Any]
    key: str = ""
    delay: float = 0.0
    attempts: int = 1
    expire_after: float = 0.0
    cancel_after: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    parents: tuple[tuple[str, OnFailure], ...] = ()
    """What it waits for, by their refs, and what it does if that does not succeed."""
    redrives: int = 0
    """How often it is started over when it has ended."""
    changes: tuple[Change, ...] = ()
    limit_key: str = ""
    """Those with the same one share a limit."""
    unique_key: str = ""
    """Only one of those with the same one is live."""
    unique_policy: UniquePolicy = "keep"
    held_back: float = 0.0
    """Its client waits so long before it submits it."""

    @property
    def labels_told(self) -> Mapping[str, str]:
        """Those of the job."""
        return self.labels if self.kind in ALIKE else {"ref": self.ref, **self.labels}

    @property
    def retry(self) -> Retry | None:
        return Retry.fixed(0.2, attempts=self.attempts) if self.attempts > 1 else None


class OrderBook:
    """Orders by seed: the same seed asks for the same jobs in the same order."""

    def __init__(
        self, seed: int, ledger: str, namespaces: tuple[str, ...], mix: Mapping[str, float] = MIX
    ) -> None:
        self._random = random.Random(seed)
        self._ledger = ledger
        self._namespaces = namespaces
        self._kinds = list(mix)
        self._weights = list(mix.values())
        self._count = 0

    def lots(self, jobs: int, go_on: Callable[[], bool]) -> Iterator[list[Order]]:
        """Submissions until so many jobs were asked for, and for as long as `go_on` says so."""
        while self._count < jobs or go_on():
            kind = self._random.choices(self._kinds, self._weights)[0]
            lot = f"lot{self._count}"
            namespace = self._random.choice(self._namespaces)
            if kind in ("tree", "steps"):
                yield self._tree(kind, namespace, lot)
                continue
            yield self._lot(kind, [self._order(kind, namespace, lot) for _ in range(_size(kind))])

    def _lot(self, kind: str, orders: list[Order]) -> list[Order]:
        """What they have in common."""
        match kind:
            case "limited":
                return self._limited(orders)
            case "rivals" | "crowd":
                key = f"only-{self._random.randrange(UNIQUE_KEYS)}"
                return [self._rival(order, key) for order in orders]
            case "lane":
                return [self._laned(order) for order in orders]
            case "bulk":
                return [self._failing(order) for order in orders]
            case _:
                return orders

    def _rival(self, order: Order, key: str) -> Order:
        """One of those who want a key. Most wait a while before they run, so that they can be
        replaced; some are cancelled, and started over when somebody else may have the key.
        """
        draw, chance = self._random.uniform, self._random.random
        policy = self._random.choice(UNIQUE_POLICIES)
        said = {**order.input, "seconds": draw(0.2, 1.5)}
        # Sent again until it is known, a refused one would be sent until nobody has the key.
        known = f"key-{order.ref}" if policy == "keep" and chance() < 0.5 else ""
        order = replace(order, type="nap", input=said, key=known, unique_key=key)
        order = replace(order, unique_policy=policy, delay=draw(0.5, 2) if chance() < 0.6 else 0)
        if chance() < 0.3:
            order = replace(order, cancel_after=draw(0, 1), redrives=1)
        return replace(order, held_back=draw(0.5, 2.5)) if chance() < 0.5 else order

    def _laned(self, order: Order) -> Order:
        """With a key or without: all of them share the limit of their type."""
        said = {**order.input, "seconds": self._random.uniform(0.1, 0.5)}
        return replace(order, type=LANE, input=said, limit_key=self._random.choice(["", "key"]))

    def _failing(self, order: Order) -> Order:
        """Most of them, so that something is left alone when those are started over."""
        fails = 99 if self._random.random() < 0.7 else 0
        return replace(order, input={**order.input, "fails": fails})

    def _limited(self, lot: list[Order]) -> list[Order]:
        """More jobs of one key than may run at once."""
        key, draw = f"key-{self._random.randrange(LIMIT_KEYS)}", self._random.uniform
        return [
            replace(
                one, type=LIMITED, limit_key=key, input={**one.input, "seconds": draw(0.2, 0.8)}
            )
            for one in lot
        ]

    def _tree(self, kind: str, namespace: str, lot: str) -> list[Order]:
        """Two jobs that end in any way, one that waits for both, and one that waits for that."""
        trunk = [self._root(kind, namespace, lot) for _ in range(2)]
        child = self._child(kind, namespace, lot, trunk)
        return [*trunk, child, self._child(kind, namespace, lot, [child])]

    def _root(self, kind: str, namespace: str, lot: str) -> Order:
        order = self._keyed(kind, namespace, lot)
        draw = self._random.uniform
        match self._random.choice(["quick", "slow", "hopeless", "cancelled"]):
            case "slow":
                said = {**order.input, "seconds": draw(0.5, 3)}
                return replace(order, type="nap", input=said)
            case "hopeless":
                return replace(order, input={**order.input, "fails": 99})
            case "cancelled":
                said = {**order.input, "seconds": draw(1, 3)}
                return replace(order, type="nap", input=said, cancel_after=draw(0, 2))
            case _:
                return order

    def _child(self, kind: str, namespace: str, lot: str, parents: list[Order]) -> Order:
        waits = tuple((parent.ref, self._random.choice(POLICIES)) for parent in parents)
        return replace(self._keyed(kind, namespace, lot), parents=waits)

    def _keyed(self, kind: str, namespace: str, lot: str) -> Order:
        order = self._order(kind, namespace, lot)
        return replace(order, key=f"key-{order.ref}")

    def _order(self, kind: str, namespace: str, lot: str) -> Order:
        self._count += 1
        ref = f"r{self._count}"
        said: dict[str, Any] = {"ledger": self._ledger, "tag": ref}
        base: dict[str, Any] = {
            "kind": kind,
            "ref": ref,
            "namespace": namespace,
            "labels": {"lot": lot},
        }
        draw = self._changed if kind in CHANGED else self._left_alone
        return draw(kind, base, said)

    def _left_alone(self, kind: str, base: dict[str, Any], said: dict[str, Any]) -> Order:
        """Jobs that run, or do not, by what was said when they were stored."""
        draw, ref = self._random.uniform, base["ref"]
        match kind:
            case "executor":
                return Order(**base, type="grind", input={**said, "seconds": draw(0, 0.05)})
            case "keyed" | "conflict" | "alike_keyed":
                return Order(**base, type="hop", input=said, key=f"key-{ref}")
            case "later":
                return Order(**base, type="hop", input=said, delay=draw(0.5, 8))
            case "flaky":
                fails = self._random.randint(1, 3)
                return Order(**base, type="hop", input={**said, "fails": fails}, attempts=fails + 2)
            case "hopeless":
                return Order(**base, type="hop", input={**said, "fails": 99}, attempts=2)
            case "long" | "steady":
                said["seconds"] = draw(2, 9) if kind == "long" else STEADY_SECONDS
                return Order(**base, type="nap", input=said)
            case "large":
                sizes = {"size": LARGE_BYTES, "padding": "y" * LARGE_BYTES}
                return Order(**base, type="hop", input={**said, **sizes})
            case "cancelled":
                said["seconds"] = draw(0, 1)
                return Order(**base, type="nap", input=said, cancel_after=draw(0, 1))
            case "expiring" | "forgotten":
                type_ = "hop" if kind == "expiring" else POOLED
                return Order(**base, type=type_, input=said, expire_after=draw(0.5, 2))
            case _:
                return Order(**base, type="hop", input={**said, "seconds": draw(0, 0.02)})

    def _changed(self, kind: str, base: dict[str, Any], said: dict[str, Any]) -> Order:
        """Jobs that somebody does something to after they were stored."""
        draw, ref = self._random.uniform, base["ref"]
        match kind:
            case "redriven":
                said["fails"] = 99
                redrives = self._random.randint(1, 3)
                return Order(**base, type="hop", input=said, attempts=2, redrives=redrives)
            case "revived":
                said["seconds"], after = draw(0, 1), draw(0, 1)
                return Order(**base, type="nap", input=said, cancel_after=after, redrives=1)
            case "updated":
                delay, changes = draw(2, 6), self._changes(ref)
                return Order(**base, type="hop", input=said, delay=delay, changes=changes)
            case _:
                said |= {"snoozes": self._random.randint(1, 3), "pause": draw(0.2, 1.5)}
                return Order(**base, type="hop", input=said)

    def _changes(self, ref: str) -> tuple[Change, ...]:
        """One to three, for a moment when it waits or does no longer."""
        draw = self._random.uniform
        return tuple(
            Change(draw(0, 2.5), draw(0, 4), self._random.randrange(10), f"{ref}-{number}")
            for number in range(self._random.randint(1, 3))
        )


def _size(kind: str) -> int:
    return SIZES.get(kind, 1)
