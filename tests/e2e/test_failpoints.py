"""The worst instants to die, freeze or fail at; all of them: make chaos-failpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tests.chaos.checker")

from tests.failpoints.cells import Cell, cells
from tests.failpoints.rig import ALL_LARGE, Rig, struck_mesh
from tests.failpoints.strike import strike

# The dump reads events through a cursor that it leaves to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WORST = (
    ("scheduler.claim.committed", "kill"),
    ("scheduler.fire.uncommitted", "kill"),
    ("worker.locked", "pause"),
    ("orchestrator.put.committed", "raise"),
    ("orchestrator.report.committed", "kill"),
    ("enqueue.answered", "drop"),
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with struck_mesh(tmp_path_factory.mktemp("struck"), ALL_LARGE) as rig:
        yield rig


@pytest.mark.parametrize(("name", "action"), WORST)
async def test_a_strike_costs_nothing(rig: Rig, name: str, action: str, tmp_path: Path) -> None:
    (cell,) = cells(name, (action,))
    assert isinstance(cell, Cell)
    outcome = await strike(rig, cell, tmp_path / "cell")
    assert outcome.good, outcome.line()
