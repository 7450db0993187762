"""Rights to keep workers' grabs: how they begin and end, and who gets what was kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from services.mesh.jobs.model import Timeouts
from services.mesh.jobs.ties import Ties
from services.mesh.testing.waiting import eventually
from services.orchestrator.domain.lent import Part
from tests.unit.orchestrator.loan_desk import LONG, Desk, deliver, jobs
from tests.unit.orchestrator.loan_fakes import grab

pytestmark = pytest.mark.jumping_time

SECOND = timedelta(seconds=1)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_without_a_loan_nothing_is_handed_out(desk):
    assert desk.loans.take(jobs()) is None


async def test_a_lent_grab_is_for_the_next_jobs_of_its_type(desk):
    desk.loans.grabbed(grab(), LONG)
    assert desk.loans.take([replace(jobs()[0], type="other")]) is None
    assert desk.loans.take(jobs(5)) == Part(grab(), 5)


async def test_puts_beside_each_other_share_a_grab(desk):
    desk.loans.grabbed(grab(credit=3), LONG)
    parts = [desk.loans.take(jobs(count)) for count in (1, 2, 1)]
    assert parts == [Part(grab(credit=3), 1), Part(grab(credit=3), 2), None]
    desk.loans.give_back(parts[1])
    assert desk.loans.take(jobs(2)) is not None


async def test_a_part_of_much_room_leaves_the_grab_open_and_one_of_little_answers_it(desk):
    desk.loans.grabbed(grab(credit=20), LONG)
    for count in (4, 5, 5):
        await deliver(desk, count)
    assert desk.hands.mores == [True, True, False]
    assert await deliver(desk, 6) == 6, "what is left may be used until the next grab is here"
    desk.loans.grabbed(grab(credit=20, number=2), 0)
    assert desk.loans.take(jobs(15)) is None, "of those six the worker may not have heard"
    assert desk.loans.take(jobs(14)) is not None


async def test_an_answer_that_did_not_leave_leaves_the_grab_as_it_was(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.hands.go_away()
    await deliver(desk, 1)
    desk.loans.recalled("t", "scheduler")
    await desk.said()
    assert desk.hands.passed_on == [(grab(), "scheduler")]


async def test_an_open_grab_is_passed_on_with_the_room_it_has_left(desk):
    desk.loans.grabbed(grab(credit=20), LONG)
    await deliver(desk, 4)
    desk.loans.recalled("t", "scheduler")
    await desk.said()
    assert desk.hands.passed_on == [(grab(credit=16), "scheduler")]


async def test_of_an_answered_grab_nothing_is_passed_on(desk):
    desk.loans.grabbed(grab(credit=3), LONG)
    await deliver(desk, 1)
    desk.loans.recalled("t", "scheduler")
    await desk.said()
    assert desk.hands.passed_on == []


async def test_a_grab_that_comes_after_the_right_is_passed_on_less_what_the_worker_has_not_heard(
    desk,
):
    desk.loans.grabbed(grab(credit=3), LONG)
    await deliver(desk, 1)
    await deliver(desk, 1)
    desk.loans.recalled("t", "scheduler")
    desk.loans.grabbed(grab(credit=3, number=2), 0)
    await desk.said()
    assert desk.hands.passed_on == [(grab(credit=2, number=2), "")]


async def test_more_jobs_than_there_is_room_for_go_the_usual_way(desk):
    desk.loans.grabbed(grab(credit=2), LONG)
    assert desk.loans.take(jobs(3)) is None
    assert desk.loans.take(jobs(2)) == Part(grab(credit=2), 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"due_time": datetime(2090, 1, 1, tzinfo=UTC)},
        {"delay": SECOND},
        {"expire_time": datetime(2090, 1, 1, tzinfo=UTC)},
        {"timeouts": Timeouts(start=SECOND)},
        {"concurrency_key": "k"},
        {"ties": Ties(unique_key="k")},
        {"schedule_id": uuid4()},
        {"origin_id": uuid4()},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_jobs_whose_start_depends_on_more_go_the_usual_way(desk, fields):
    desk.loans.grabbed(grab(), LONG)
    assert desk.loans.take([*jobs(), *jobs(**fields)]) is None
    assert desk.loans.take(jobs()) is not None


async def test_a_worker_may_send_its_next_grab_while_the_right_lasts(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 1)
    desk.loans.grabbed(grab(number=2), 0)
    assert desk.loans.take(jobs()) == Part(grab(number=2), 1)


async def test_a_grab_that_comes_without_a_right_is_passed_on_to_any_scheduler(desk):
    desk.loans.grabbed(grab(), 0)
    await desk.said()
    assert desk.hands.passed_on == [(grab(), "")]
    assert desk.loans.take(jobs()) is None


async def test_what_schedulers_were_nudged_for_ends_the_right(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.loans.grabbed(grab(type_="other"), LONG)
    desk.loans.nudged({"t"})
    desk.loans.grabbed(grab(number=2), 0)
    await desk.said()
    assert desk.hands.passed_on == [(grab(), ""), (grab(number=2), "")]
    assert desk.loans.take([replace(jobs()[0], type="other")]) is not None


async def test_a_recall_sends_the_grabs_to_whoever_wants_them(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.loans.grabbed(grab(worker="w2"), LONG)
    desk.loans.recalled("t", "scheduler-1")
    desk.loans.recalled("t", "scheduler-2")
    await desk.said()
    assert [to for _, to in desk.hands.passed_on] == ["scheduler-1"] * 2
    assert desk.loans.take(jobs()) is None


async def test_a_grab_that_a_put_has_is_passed_on_when_it_comes_back_unused(desk):
    desk.loans.grabbed(grab(), LONG)
    taken = desk.loans.take(jobs())
    desk.loans.recalled("t", "scheduler")
    await desk.said()
    assert desk.hands.passed_on == []
    desk.loans.give_back(taken)
    await desk.said()
    assert desk.hands.passed_on == [(grab(), "")]


async def test_a_right_that_lapses_lets_workers_grab_anew(desk):
    desk.loans.grabbed(grab(), 0.001)
    await eventually(lambda: desk.hands.emptied)
    assert desk.hands.emptied == [grab()]
    assert desk.loans.take(jobs()) is None


async def test_a_newer_loan_makes_the_right_last_longer(desk):
    desk.loans.grabbed(grab(), 0.001)
    desk.loans.grabbed(grab(number=2), LONG)
    desk.loans.grabbed(grab(type_="other"), 0.002)
    await eventually(lambda: desk.hands.emptied)
    assert desk.hands.emptied == [grab(type_="other")]
    assert desk.loans.take(jobs()) == Part(grab(number=2), 1)


async def test_a_newer_grab_has_less_room_by_what_the_older_one_brings(desk):
    desk.loans.grabbed(grab(credit=3), LONG)
    taken = desk.loans.take(jobs(2))
    desk.loans.grabbed(grab(credit=3, number=2), 0)
    await deliver(desk, 2, taken)
    assert desk.loans.take(jobs(2)) is None
    assert desk.loans.take(jobs(1)) is not None


async def test_a_newer_grab_without_room_left_is_answered(desk):
    desk.loans.grabbed(grab(credit=2), LONG)
    taken = desk.loans.take(jobs(2))
    desk.loans.grabbed(grab(credit=2, number=2), 0)
    await deliver(desk, 2, taken)
    await desk.said()
    assert desk.hands.asked_anew == [grab(credit=2, number=2)]


async def test_nothing_is_handed_to_workers_that_are_lost_or_have_withdrawn(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.loans.worker_lost("w1")
    assert desk.loans.take(jobs()) is None
    desk.loans.grabbed(grab(worker="w2"), LONG)
    desk.loans.withdrawn(grab(credit=0, worker="w2"))
    assert desk.loans.take(jobs()) is None


async def test_nothing_is_handed_out_while_the_broker_is_away(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.hands.connected = False
    assert desk.loans.take(jobs()) is None


async def test_nothing_is_handed_out_of_a_type_that_has_limits_by_now(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.loans.is_barred = {"t"}.__contains__
    assert desk.loans.take(jobs()) is None


async def test_an_orchestrator_that_ends_passes_all_grabs_on(desk):
    desk.loans.grabbed(grab(), LONG)
    desk.loans.grabbed(grab(type_="other"), LONG)
    desk.loans.close()
    await desk.said()
    assert len(desk.hands.passed_on) == 2
