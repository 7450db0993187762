"""The nemesis' plan: which faults, on whom, when and for how long; all of it decided by the seed.

Kinds are named `<what>.<whom>`; `about` gives the numbers of the list of faults each stands for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.links import pairs, role_of


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    about: str
    seconds: tuple[float, float]
    """Between which bounds it lasts."""
    weight: float = 1.0
    alone: bool = False
    """No other fault may be under way."""
    target: str = ""
    """The role it strikes; by default what follows the dot. "link": a pair that talks."""


_LINK = "link"
_LEASE = (7.0, 12.0)
"""Longer than a lease of five seconds, and its margin."""
KINDS: Mapping[str, Kind] = {
    "kill.worker": Kind("F57 F62", (0.2, 4), 3),
    "kill.scheduler": Kind("F23 F32", (0.2, 6), 3),
    "kill.orchestrator": Kind("F4", (0.2, 4), 2),
    "kill.enqueue": Kind("F4 F78", (0.2, 4), 2),
    "kill.scaler": Kind("F85", (0.2, 4)),
    "stop.worker": Kind("F58 F49", (9, 14), 3),
    "stop.scheduler": Kind("F25", _LEASE, 2),
    "stop.orchestrator": Kind("F89", (4, 9)),
    "stop.enqueue": Kind("F89", (4, 9)),
    "drain.worker": Kind("F65", (0, 1), 2),
    "drain.scheduler": Kind("F65", (0, 1)),
    "drain.orchestrator": Kind("F65", (0, 1)),
    "drain.enqueue": Kind("F65 F83", (0, 1)),
    "starve.worker": Kind("F92 F55", (5, 9)),
    "starve.scheduler": Kind("F92", (5, 9)),
    "skew.worker": Kind("F28 F72", (6, 10)),
    "skew.scheduler": Kind("F28", (6, 10)),
    "skew.enqueue": Kind("F28", (6, 10)),
    "kill.shard": Kind("F9 F3", (0.5, 4), 2),
    "restart.shard": Kind("F9", (0, 0.5)),
    "stop.shard": Kind("F10", (4, 9), 2),
    "readonly.shard": Kind("F9", (3, 6)),
    "lock.shard": Kind("F18 F19", (3, 8)),
    "full.shard": Kind("F16", (3, 6)),
    "kill.nats": Kind("F39 F40", (0.2, 3), 2),
    "stop.nats": Kind("F45", (3, 7)),
    "kill.etcd": Kind("F47", (1, 5), 2),
    "stop.etcd": Kind("F56", (3, 8)),
    "quorum.etcd": Kind("F48", (6, 10), target="etcd", alone=True),
    "revoke.etcd": Kind("F49 F51", (0, 0), target="etcd"),
    "compact.etcd": Kind("F52", (0, 0), target="etcd"),
    "kill.s3": Kind("F73 F68", (1, 6)),
    "stop.s3": Kind("F73", (4, 9)),
    "hold.link": Kind("F45 F61 F89", (4, 10), 3),
    "hold-requests.link": Kind("F61 F89", (4, 10), 2),
    "hold-replies.link": Kind("F50 F60 F61", (4, 10), 2),
    "reset.link": Kind("F26 F68", (0.5, 4), 2),
    "delay.link": Kind("F89", (4, 10)),
    "throttle.link": Kind("F89 F69", (4, 10)),
    "cut-after.link": Kind("F2 F60 F70", (1, 5), 3),
    "partition.worker": Kind("F61", _LEASE, 2),
    "partition.scheduler": Kind("F25 F45", _LEASE),
    "partition.orchestrator": Kind("F89", (4, 9)),
    "drop.broker": Kind("F40 F39", (3, 6), 2, target="nats"),
    "replay.broker": Kind("F43", (2, 4), 2, target="nats"),
    "kill.all": Kind("F90 F91", (0, 1), 0.5, alone=True, target="all"),
}
#: What a short run can hold on two cores, with work in flight for each. Frozen workers three times:
#: one of them will leave a zombie.
QUICK_KINDS = (
    "stop.worker",
    "stop.worker",
    "kill.worker",
    "kill.scheduler",
    "kill.orchestrator",
    "kill.enqueue",
    "stop.worker",
    "stop.scheduler",
    "drain.worker",
    "kill.shard",
    "stop.shard",
    "kill.nats",
    "kill.etcd",
    "kill.s3",
    "hold.link",
    "reset.link",
    "cut-after.link",
    "partition.worker",
    "drop.broker",
    "replay.broker",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault."""

    number: int
    at: float
    """Seconds after the load began."""
    kind: str
    target: str
    """A unit, or `caller>callee` for a link."""
    seconds: float
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        return self.kind.partition(".")[0]

    @property
    def units(self) -> list[str]:
        """The units that are struck; a link strikes its caller."""
        return [self.target.partition(">")[0]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def draw_plan(
    seed: int, units: Sequence[str], *, seconds: float, faults: int, kinds: Sequence[str]
) -> list[Fault]:
    """So many faults: four fifths of them in rounds of every kind once, the rest by weight.

    In rounds, so that a run that is cut short has still met as many kinds as it could.
    """
    chance = random.Random(seed)
    drawn: list[str] = []
    for _ in range(max(1, faults * 4 // (5 * len(kinds)))):
        drawn += chance.sample(kinds, len(kinds))
    weights = [KINDS[kind].weight for kind in kinds]
    drawn += chance.choices(kinds, weights, k=max(0, faults - len(drawn)))
    pace = seconds / len(drawn)
    return [
        draw_fault(chance, number, pace * (number + chance.uniform(0, 0.6)), kind, units)
        for number, kind in enumerate(drawn)
    ]


def draw_fault(
    chance: random.Random, number: int, at: float, kind: str, units: Sequence[str]
) -> Fault:
    """One fault of a kind: whom it strikes, for how long, and what it needs to be told."""
    spec = KINDS[kind]
    role = spec.target or kind.partition(".")[2]
    low, high = spec.seconds
    target = _link(chance, kind, units) if role == _LINK else _unit(chance, role, units)
    options: dict[str, Any] = {"seed": chance.randrange(1 << 30)}
    match kind.partition(".")[0]:
        case "delay":
            options["delay"] = round(chance.uniform(0.05, 0.5), 3)
        case "throttle":
            options["bytes"] = chance.randrange(2_000, 50_000)
        case "cut-after":
            options["bytes"] = chance.choice([0, 0, 0, 100, 1_000, 10_000])
        case "skew":
            # Further for a worker, and the object store would refuse its signatures.
            options["skew"] = chance.choice([-240, 240] if role == "worker" else [-3600, 3600])
        case "drop":
            options["share"] = chance.choice([0.3, 0.6, 1.0])
    return Fault(number, round(at, 3), kind, target, round(chance.uniform(low, high), 3), options)


def _unit(chance: random.Random, role: str, units: Sequence[str]) -> str:
    return chance.choice([unit for unit in units if role_of(unit) == role] or [role])


def _link(chance: random.Random, kind: str, units: Sequence[str]) -> str:
    return ">".join(chance.choice(pairs(units)))
