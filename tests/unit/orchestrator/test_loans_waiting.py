"""Puts that find no room in workers: who waits for it, for how long, and what renews the right."""

from __future__ import annotations

import asyncio

import pytest

from services.mesh.testing.waiting import eventually
from services.orchestrator.app.loans import RENEWS_AT
from services.orchestrator.domain.lent import MOST_ASKED, Part
from services.orchestrator.domain.shortage import LONG as LONG_SHORTAGE
from services.orchestrator.domain.shortage import MANY
from tests.unit.orchestrator.loan_desk import LONG, Desk, deliver, jobs, waiting
from tests.unit.orchestrator.loan_fakes import grab

pytestmark = pytest.mark.jumping_time


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_a_put_waits_for_the_next_grab_of_a_worker_that_has_had_as_much_room(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 5)
    put = await waiting(desk, 5)
    assert not put.done()
    desk.loans.grabbed(grab(number=2), 0)
    assert await put == Part(grab(number=2), 5)


async def test_a_put_waits_for_the_room_that_another_one_may_leave(desk):
    desk.loans.grabbed(grab(), LONG)
    taken = desk.loans.take(jobs(5))
    put = await waiting(desk, 5)
    desk.loans.give_back(taken)
    assert await put == Part(grab(), 5)


async def test_who_comes_later_does_not_overtake_a_put_that_waits(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 4)
    large = await waiting(desk, 5)
    assert desk.loans.take(jobs(1)) is None
    small = await waiting(desk, 1)
    desk.loans.grabbed(grab(credit=6, number=2), 0)
    assert (await large, await small) == (
        Part(grab(credit=6, number=2), 5),
        Part(grab(credit=6, number=2), 1),
    )


async def test_a_put_does_not_wait_for_what_no_worker_has_had_room_for(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 5)
    assert (await waiting(desk, 11)).done()


async def test_a_worker_that_says_too_little_room_is_asked_anew_for_those_who_wait(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 5)
    put = await waiting(desk, 5)
    desk.loans.grabbed(grab(credit=2, number=2), 0)
    await eventually(lambda: desk.hands.asked_anew)
    assert desk.hands.asked_anew == [grab(credit=2, number=2)]
    desk.loans.grabbed(grab(credit=4, number=3), 0)
    await eventually(lambda: len(desk.hands.asked_anew) > 1)
    desk.loans.grabbed(grab(number=4), 0)
    assert await put == Part(grab(number=4), 5)


@pytest.mark.parametrize("end", ["nudged", "recalled", "barred", "closed"])
async def test_a_put_that_waits_goes_the_usual_way_as_soon_as_others_need_the_room(desk, end):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 5)
    put = await waiting(desk, 5)
    ends = {
        "nudged": lambda: desk.loans.nudged({"t"}),
        "recalled": lambda: desk.loans.recalled("t", "scheduler"),
        "barred": lambda: desk.loans.barred("t"),
        "closed": desk.loans.close,
    }
    ends[end]()
    assert await put is None


async def test_a_put_that_waited_in_vain_goes_the_usual_way_and_the_next_one_does_not_wait(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 5)
    assert await desk.loans.room(jobs(5)) is None
    put = await waiting(desk, 5)
    assert put.done()


async def test_a_right_that_is_used_is_renewed_by_a_grab_that_a_scheduler_lends_again(desk):
    desk.loans.grabbed(grab(), 0.5)
    await deliver(desk, 5)
    await asyncio.sleep(RENEWS_AT * 0.5)
    put = await waiting(desk, 5)
    desk.loans.grabbed(grab(number=2), 0)
    await desk.said()
    assert desk.hands.asked_back == [(grab(number=2), "")]
    assert not put.done()
    late = await waiting(desk, 5)
    assert not late.done(), "the grab is about to be back"
    desk.loans.grabbed(grab(number=2), LONG)
    assert await put == Part(grab(number=2), 5)
    late.cancel()


async def test_one_grab_is_enough_to_renew_a_right(desk):
    desk.loans.grabbed(grab(), 0.5)
    desk.loans.grabbed(grab(worker="w2"), 0.5)
    await deliver(desk, 1)
    await deliver(desk, 1)
    await asyncio.sleep(RENEWS_AT * 0.5)
    desk.loans.grabbed(grab(number=2), 0)
    desk.loans.grabbed(grab(worker="w2", number=2), 0)
    await desk.said()
    assert desk.hands.asked_back == [(grab(number=2), "")]
    assert desk.loans.take(jobs(5)) == Part(grab(worker="w2", number=2), 5)


async def test_many_jobs_wait_for_a_right_that_schedulers_may_give(desk):
    desk.loans.nudged({"t"})
    put = await waiting(desk, MANY)
    assert not put.done()
    desk.loans.grabbed(grab(credit=MANY), LONG)
    assert await put == Part(grab(credit=MANY), MANY)


async def test_few_jobs_do_not_wait_for_a_right(desk):
    desk.loans.nudged({"t"})
    assert (await waiting(desk, MANY - 1)).done()


async def test_nobody_waits_for_a_right_of_a_type_that_no_scheduler_was_told_of(desk):
    assert (await waiting(desk, MANY)).done()


async def test_nobody_waits_in_an_orchestrator_that_ends(desk):
    desk.loans.nudged({"t"})
    put = await waiting(desk, MANY)
    desk.loans.close()
    assert await put is None
    assert (await waiting(desk, MANY)).done()


async def test_a_right_that_comes_late_does_not_pass_for_room_that_takes_long(desk):
    """Else large puts would not wait for room in the stream that they have just begun."""
    desk.loans.nudged({"t"})
    put = await waiting(desk, MANY)
    await asyncio.sleep(2.2 * LONG_SHORTAGE)
    desk.loans.grabbed(grab(credit=MANY), LONG)
    part = await put
    assert part is not None
    desk.loans.give_back(part)
    await deliver(desk, MANY)
    again = await waiting(desk, MANY)
    assert not again.done()
    again.cancel()


async def test_room_that_comes_as_its_waiter_goes_away_is_not_lost(desk):
    desk.loans.grabbed(grab(), LONG)
    await deliver(desk, 5)
    put = await waiting(desk, 5)
    put.cancel()
    desk.loans.grabbed(grab(number=2), 0)
    await desk.said()
    assert put.cancelled()
    assert desk.loans.take(jobs(5)) is not None


async def test_puts_that_are_cancelled_together_keep_no_room(desk):
    desk.loans.grabbed(grab(credit=20), LONG)
    part = desk.loans.take(jobs(15))
    large, small = await waiting(desk, 20), await waiting(desk, 5)
    for put in (large, small):
        put.cancel()
    await desk.said()
    desk.loans.give_back(part)
    desk.loans.recalled("t", "scheduler")
    await desk.said()
    assert desk.hands.passed_on == [(grab(credit=20), "scheduler")]


async def test_what_is_left_of_grabs_when_the_right_has_ended_is_for_nobody(desk):
    desk.loans.nudged({"t"})
    desk.loans.grabbed(grab(credit=500), LONG)
    desk.loans.take(jobs(10))
    desk.loans.recalled("t", "scheduler")
    put = await waiting(desk, MANY)
    assert not put.done()
    put.cancel()


async def test_grabs_that_nobody_uses_are_answered_though_another_one_renews_the_right(desk):
    lasts = 0.1
    for worker in ("busy", "idle"):
        desk.loans.grabbed(grab(worker=worker, credit=3), lasts)
    for number in (2, 3, 4):
        await asyncio.sleep(lasts / 2)
        desk.loans.grabbed(grab(worker="busy", credit=3, number=number), 0)
        await desk.said()
        while desk.hands.asked_back:
            desk.loans.grabbed(desk.hands.asked_back.pop()[0], lasts)
    assert grab(worker="idle", credit=3) in desk.hands.asked_anew


async def test_puts_do_not_wait_for_a_large_worker_while_a_small_one_stands_idle(desk):
    """In the queue there is work for both."""
    desk.loans.grabbed(grab(worker="large"), LONG)
    desk.loans.grabbed(grab(worker="small", credit=2), LONG)
    await deliver(desk, 5)
    for number in range(2, MOST_ASKED + 2):
        put = await waiting(desk, 5)
        await eventually(lambda: desk.hands.asked_anew)
        desk.hands.asked_anew.clear()
        desk.loans.grabbed(grab(worker="small", credit=2, number=number), 0)
        desk.loans.grabbed(grab(worker="large", number=number), 0)
        await deliver(desk, 5, await put)
    put = await waiting(desk, 5)
    assert await put is None
    assert not desk.hands.asked_anew


async def test_a_worker_of_which_others_have_parts_grabs_here_even_after_the_right(desk):
    """Else a scheduler would give out the room that they have."""
    desk.loans.grabbed(grab(credit=10), LONG)
    first, second = desk.loans.take(jobs(4)), desk.loans.take(jobs(5))
    desk.loans.recalled("t", "scheduler")
    await deliver(desk, 4, first)
    assert desk.hands.stays == [True]
    desk.loans.grabbed(grab(credit=6, number=2), 0)
    await deliver(desk, 5, second)
    await desk.said()
    assert desk.hands.passed_on == [(grab(credit=1, number=2), "")]


async def test_what_is_left_when_a_worker_grabs_elsewhere_is_for_nobody(desk):
    desk.loans.grabbed(grab(credit=10), LONG)
    part = desk.loans.take(jobs(2))
    desk.loans.recalled("t", "scheduler")
    await deliver(desk, 2, part)
    assert desk.hands.stays == [False]
    desk.loans.grabbed(grab(worker="w2", credit=1), LONG)
    assert desk.loans.take(jobs(2)) is None
