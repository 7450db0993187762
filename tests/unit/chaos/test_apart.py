"""One fault at a time: the plan has no two at once, and the nemesis keeps them apart as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.apart import REST_SECONDS, ROUND, draw_apart, end_of
from tests.chaos.history import read_lines
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import KINDS, Fault
from tests.chaos.recovery import RESCUED, RESUMED, SWEPT, Measure, Sample, judge
from tests.chaos.strikes import Strikes
from tests.unit.chaos.test_plan import UNITS


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minutes", [1, 5, 15])
def test_no_fault_is_planned_before_the_one_before_is_healed_and_all_is_at_rest(
    seed: int, minutes: int
) -> None:
    plan = draw_apart(seed, UNITS, seconds=60 * minutes)
    for fault, following in pairwise(plan):
        assert fault.at + fault.seconds < end_of(fault)
        assert following.at - end_of(fault) >= REST_SECONDS - 0.01


def test_every_kind_is_planned_as_often_as_its_samples_need() -> None:
    plan = draw_apart(3, UNITS, seconds=900)
    kinds = [fault.kind for fault in plan]
    assert set(kinds) == set(ROUND)
    for kind, times in ROUND.items():
        assert kinds.count(kind) >= 2 * times
        low, high = KINDS[kind].seconds
        assert all(low <= fault.seconds <= high for fault in plan if fault.kind == kind)
    assert end_of(plan[-1]) < 900


def test_a_short_run_holds_one_whole_round() -> None:
    plan = draw_apart(3, UNITS, seconds=1)
    assert len(plan) == sum(ROUND.values())


def test_of_etcd_the_leader_is_meant() -> None:
    plan = draw_apart(3, UNITS, seconds=1)
    assert {fault.kind for fault in plan if fault.options.get("leader")} == {"kill.etcd"}


def test_a_kind_may_be_asked_for_alone() -> None:
    plan = draw_apart(3, UNITS, seconds=60, kinds=["stop.scheduler"])
    assert {fault.kind for fault in plan} == {"stop.scheduler"}


class _Marks:
    """Strikes that only say when they come and go."""

    def __init__(self) -> None:
        self.under_way = 0
        self.most = 0
        self.steps: list[str] = []

    @asynccontextmanager
    async def strike(self, fault: Fault, detail: dict[str, Any]) -> AsyncIterator[None]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        yield
        await asyncio.sleep(0)
        self.under_way -= 1
        self.steps.append(f"healed {fault.number}")

    def found_dead(self, fault: Fault) -> list[str]:
        return []

    async def rest(self) -> None:
        assert self.under_way == 0
        await asyncio.sleep(0)
        self.steps.append("rested")


def _faults(many: int) -> list[Fault]:
    return [Fault(n, 0.0, "kill.worker", f"worker-{n}", 0.0) for n in range(many)]


async def test_the_nemesis_rests_between_faults_even_if_healing_takes_longer_than_planned(
    tmp_path: Path,
) -> None:
    marks = _Marks()
    nemesis = Nemesis(cast(Strikes, marks), tmp_path)
    nemesis.go_apart(marks.rest)
    await nemesis.carry_out(_faults(3), until=60)
    assert marks.most == 1
    assert marks.steps == ["healed 0", "rested", "healed 1", "rested", "healed 2", "rested"]
    assert [line["number"] for line in read_lines(tmp_path / "faults.jsonl")] == [0, 1, 2]


async def test_otherwise_faults_on_different_units_overlap(tmp_path: Path) -> None:
    marks = _Marks()
    await Nemesis(cast(Strikes, marks), tmp_path).carry_out(_faults(3), until=60)
    assert marks.most > 1


# --- the verdict


def _measure(name: str, target: float, *seconds: float, **fields: Any) -> Measure:
    return Measure(name, target, [Sample(0.0, one) for one in seconds], **fields)


def test_recovery_passes_when_every_target_is_kept() -> None:
    told = judge([_measure(RESCUED, 8, 7.9), _measure(SWEPT, 6, 5)], ["kill.worker", "drop.broker"])
    assert told.line == "recovery: PASS targets=2 missed=0"


def test_one_missed_target_fails_it_and_is_named() -> None:
    told = judge([_measure(RESCUED, 8, 5, 8.1), _measure(SWEPT, 6, 5)], ["kill.worker"])
    assert told.word == "FAIL"
    assert told.line.endswith(f"missed=1; {RESCUED} 8.1 > 8 (of 2)")


def test_a_sample_in_a_hundred_may_be_late_but_not_a_failed_call() -> None:
    values = [1.0] * 99 + [9.0]
    assert judge([_measure(RESCUED, 8, *values)], []).word == "PASS"
    strict = _measure("calls that fail", 0, *[0.0] * 999, 1.0, share=1.0)
    assert judge([strict], []).word == "FAIL"


def test_a_late_sample_counts_though_the_next_fault_began_meanwhile() -> None:
    late = Measure(RESCUED, 8, [Sample(0, 1), Sample(0, 9, beside=("kill.etcd etcd",))])
    assert late.to_json()["met"]
    assert judge([late], []).word == "FAIL"


def test_a_target_without_samples_was_not_kept() -> None:
    told = judge([_measure(RESCUED, 8, 1)], ["kill.worker", "kill.enqueue"])
    assert told.word == "FAIL"
    assert f"{RESUMED}: no samples" in told.missed


def test_what_is_only_shown_decides_nothing() -> None:
    shown = _measure("lateness", 10, 99, is_target=False)
    assert judge([_measure(RESCUED, 8, 1), shown], []).word == "PASS"
