"""One fault at a time, and rest between them: the plan by which recovery targets are judged.

Where faults overlap, the time until things work again is that of whichever lasts longest. Here each
begins when the one before is healed, its canaries have ended, and some seconds have passed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.chaos.plan import Fault, draw_fault

#: Longer than the longest target but those for a whole mesh: what was lost has been found by then.
REST_SECONDS = 8.0
#: When canaries fly, in seconds after a fault or its end: not all of them meet the same instant.
WAVES = (0.0, 0.5, 1.5)
#: How often each kind that has a target comes in a round; a round takes five minutes.
ROUND: Mapping[str, int] = {
    "kill.worker": 4,
    "kill.scheduler": 2,
    "kill.orchestrator": 1,
    "kill.enqueue": 2,
    "kill.nats": 1,
    "stop.nats": 1,
    "drop.broker": 2,
    "kill.etcd": 2,
    "quorum.etcd": 1,
    "kill.shard": 2,
    "stop.shard": 2,
    "restart.shard": 1,
    "readonly.shard": 1,
    "full.shard": 1,
    "kill.all": 1,
}
#: What undoing takes: processes are started again, and wait until they can work.
_HEAL_SECONDS = 1.5
_HEAL_ALL_SECONDS = 15.0


def draw_apart(
    seed: int, units: Sequence[str], *, seconds: float, kinds: Sequence[str] = ()
) -> list[Fault]:
    """Round after round until the time is used up; the first is whole, however long it takes."""
    chance = random.Random(seed)
    names = [kind for kind in kinds or ROUND for _ in range(ROUND.get(kind, 1))]
    plan: list[Fault] = []
    at = REST_SECONDS
    while True:
        for kind in chance.sample(names, len(names)):
            fault = _aimed(draw_fault(chance, len(plan), at, kind, units))
            if len(plan) >= len(names) and end_of(fault) > seconds:
                return plan
            plan.append(fault)
            at = end_of(fault) + REST_SECONDS


def end_of(fault: Fault) -> float:
    """When it will be healed, by estimate; the nemesis waits until it is."""
    heal = _HEAL_ALL_SECONDS if fault.target == "all" else _HEAL_SECONDS
    return fault.at + fault.seconds + heal


def _aimed(fault: Fault) -> Fault:
    """The target for etcd is about its leader: the loss of another member is hardly noticed."""
    if fault.kind != "kill.etcd":
        return fault
    return replace(fault, options={**fault.options, "leader": True})
