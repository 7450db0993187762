"""What was asked for ahead of room waits its turn, and not for long."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from services.mesh.clock import ManualClock
from services.worker.app import turns as module
from services.worker.app.turns import Owner, Turns
from services.worker.domain.attempt import Attempt, Stop
from services.worker.domain.ending import Ending, HandedBack, Progressed, Report


class Runs:
    """A runner that only notes what it was given."""

    def __init__(self) -> None:
        self.launched: list[Attempt] = []
        self.stopped: list[Attempt] = []

    def launch(self, attempt: Attempt, owner: Owner) -> None:
        self.launched.append(attempt)

    def stop(self, attempt: Attempt, why: Stop) -> bool:
        if attempt.runs:
            self.stopped.append(attempt)
        return attempt.runs


class Identity(Owner):
    may_start = True

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.over: list[tuple[Attempt, Ending | None]] = []
        self.came_back = asyncio.Event()

    def tell(self, report: Report) -> None: ...

    def tell_progress(self, attempt: Attempt, progress: Progressed) -> None: ...

    def ended(self, attempt: Attempt, ending: Ending | None, traceparent: str) -> None:
        self.over.append((attempt, ending))
        self.turns.ended(attempt)

    def hand_back(self, attempt: Attempt, ending: HandedBack) -> None:
        self.ended(attempt, ending, "")
        self.came_back.set()

    def launch(self, count: int, type_: str = "t") -> list[Attempt]:
        made = [attempt(type_) for _ in range(count)]
        for one in made:
            self.turns.launch(one, self)
        return made


def attempt(type_: str = "t") -> Attempt:
    job_id = uuid4()
    return Attempt(job_id.bytes, 1, type_, "default", 1)


class Stand:
    def __init__(self) -> None:
        self.runs, self.clock = Runs(), ManualClock()
        capacity = {"t": 2, "u": 1}
        self.turns = Turns(self.runs, capacity.__getitem__, self.clock)  # type: ignore[arg-type]
        self.us = Identity(self.turns)


@pytest.fixture
async def stand() -> Stand:
    return Stand()


async def test_no_more_run_at_once_than_may_and_the_rest_in_its_turn(stand: Stand) -> None:
    first, second, third, fourth = stand.us.launch(4)
    assert stand.runs.launched == [first, second]
    stand.us.ended(second, None, "")
    assert stand.runs.launched == [first, second, third]
    stand.us.ended(first, None, "")
    assert stand.runs.launched == [first, second, third, fourth]
    stand.turns.close()


async def test_types_do_not_wait_for_each_other(stand: Stand) -> None:
    first, _ = stand.us.launch(2, "u")
    assert len(stand.us.launch(2)) == 2
    assert len(stand.runs.launched) == 3
    stand.us.ended(first, None, "")
    assert len(stand.runs.launched) == 4
    stand.turns.close()


async def test_an_attempt_that_never_ran_frees_no_room(stand: Stand) -> None:
    *_, waiting = stand.us.launch(3)
    stand.turns.ended(attempt())
    assert waiting not in stand.runs.launched
    stand.turns.close()


async def test_who_waits_too_long_is_handed_back(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    *_, early, late = stand.us.launch(4)
    stand.clock.advance(0.02)
    async with asyncio.timeout(10):
        await stand.us.came_back.wait()
    assert stand.us.over == [(early, HandedBack("no room")), (late, HandedBack("no room"))]
    # It looks again for who came later.
    stand.us.came_back.clear()
    (another,) = stand.us.launch(1)
    stand.clock.advance(0.02)
    async with asyncio.timeout(10):
        await stand.us.came_back.wait()
    assert stand.us.over[-1][0] is another
    assert len(stand.runs.launched) == 2


async def test_who_is_stopped_while_waiting_never_runs(stand: Stand) -> None:
    running, _, waiting, next_ = stand.us.launch(4)
    assert stand.turns.stop(running, Stop.CANCELLED)
    assert stand.runs.stopped == [running]
    assert stand.turns.stop(waiting, Stop.STALE)
    assert stand.us.over == [(waiting, None)]
    assert not stand.turns.stop(waiting, Stop.STALE)
    stand.us.ended(running, None, "")
    assert stand.runs.launched[-1] is next_
    stand.turns.close()


async def test_a_drain_hands_back_what_waits_and_lets_run_what_runs(stand: Stand) -> None:
    other = Identity(stand.turns)
    stand.us.launch(2)
    ours, theirs = stand.us.launch(1), other.launch(1)
    stand.turns.hand_back(HandedBack("drain"), stand.us)
    assert stand.us.over == [(ours[0], HandedBack("drain"))]
    assert other.over == []
    stand.us.ended(stand.runs.launched[0], None, "")
    assert stand.runs.launched[-1] is theirs[0]
    stand.turns.close()


async def test_waiting_counts_as_part_of_the_total_time(stand: Stand) -> None:
    first, *_ = stand.us.launch(2)
    waiting = attempt()
    waiting.total_left = 5.0
    stand.turns.launch(waiting, stand.us)
    stand.clock.advance(0.5)
    stand.us.ended(first, None, "")
    assert stand.runs.launched[-1] is waiting
    assert waiting.total_left == pytest.approx(4.5)
    stand.turns.close()
