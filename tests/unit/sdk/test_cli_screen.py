"""Tables on terminals that are wide, narrow, or none."""

from __future__ import annotations

import pytest
from jobmesh.cli import render, screen
from jobmesh.v1.pool_pb2 import Pool
from rich.console import Console

WHY = "212 waiting and 3 in hand, at 100 per worker, need 3 workers"


def pool(type_: str, explanation: str = WHY) -> Pool:
    made = Pool(actual=3, desired=5, starting=2, draining=1)
    made.spec.type, made.spec.max_workers = type_, 16
    made.decision.backlog, made.decision.explanation = 10_000, explanation
    return made


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The lines that a table of pools takes on a terminal of some width."""

    def show(width: int, *pools: Pool) -> list[str]:
        terminal = Console(width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(screen, "console", lambda stream: terminal)
        screen.Screen().table(render.POOL_COLUMNS, map(render.pool_row, pools))
        return capsys.readouterr().out.splitlines()

    return show


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_pools_are_readable_on_a_terminal_of_this_width(shown, width) -> None:
    lines = shown(width, pool("render-thumbnails"), pool("primes"))
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:5] == ["TYPE", "WORKERS", "DESIRED", "BOUNDS", "BACKLOG"]
    (row,) = (line for line in lines if line.startswith("render-"))
    assert row.split()[1:5] == ["3", "5", "0..16", "10000"]
    assert len(lines) <= 12, "prose has room enough"
    assert set(WHY.split()) <= set(" ".join(lines).split())


def test_prose_stands_beside_its_row_where_there_is_room_and_below_where_not(shown) -> None:
    one = pool("primes")
    assert shown(200, one)[1].endswith(f"2 starting, 1 draining; {WHY}")
    assert shown(60, one)[2].startswith("  2 starting, 1 draining; 212 waiting")


def test_a_pool_without_prose_takes_one_line(shown) -> None:
    quiet = pool("primes", "")
    quiet.ClearField("starting")
    quiet.ClearField("draining")
    assert len(shown(50, quiet)) == 2


def test_an_id_is_never_cut() -> None:
    job_id = "0" * screen.ID_WIDTH
    columns, rows = ("ID", "STATE", "NOTE"), [(job_id, "FAILED", "ValueError: " + "no " * 20)]
    assert screen.lacks_room(columns, rows, 50)
    terminal = Console(width=50, color_system=None)
    with terminal.capture() as captured:
        terminal.print(screen.stack(columns, rows, 50))
    assert job_id in captured.get()
