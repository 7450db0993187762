"""The nemesis' plan follows from its seed, and meets every kind."""

from __future__ import annotations

import pytest

from tests.chaos.links import pairs, role_of
from tests.chaos.plan import KINDS, QUICK_KINDS, draw_plan

UNITS = ["shard-0", "shard-1", "nats", "etcd", "etcd-2", "s3", "orchestrator", "orchestrator-2"]
UNITS += ["enqueue", "enqueue-2", "scheduler", "scheduler-2", "scaler", "worker-1", "worker-2"]


def test_a_seed_makes_one_plan() -> None:
    first, again, other = (
        draw_plan(seed, UNITS, seconds=60, faults=60, kinds=tuple(KINDS)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(("kinds", "faults"), [(tuple(KINDS), 500), (QUICK_KINDS, 36)])
def test_every_kind_is_planned_and_has_somebody_to_strike(
    kinds: tuple[str, ...], faults: int
) -> None:
    plan = draw_plan(3, UNITS, seconds=600, faults=faults, kinds=kinds)
    assert len(plan) == faults
    assert {fault.kind for fault in plan} == set(kinds)
    assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)
    links = {">".join(pair) for pair in pairs(UNITS)}
    for fault in plan:
        low, high = KINDS[fault.kind].seconds
        assert low <= fault.seconds <= high
        assert fault.target in UNITS or fault.target in links or fault.target == "all"


def test_links_join_those_who_talk() -> None:
    found = set(pairs(UNITS))
    assert ("worker-1", "orchestrator-2") in found
    assert ("client", "enqueue") in found
    roles = {(role_of(caller), role_of(callee)) for caller, callee in found}
    assert not {("worker", "shard"), ("enqueue", "shard"), ("scaler", "shard")} & roles
