"""Rights to keep workers' grabs: how they begin and end, and who gets what was kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from services.mesh.jobs.model import NewJob, Timeouts
from services.mesh.jobs.states import JobState
from services.mesh.jobs.ties import Ties
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.mesh.testing.waiting import eventually
from services.orchestrator.app.loans import RENEWS_AT, Loans
from services.orchestrator.domain.lent import MOST_ASKED, Part
from services.orchestrator.domain.shortage import LONG as LONG_SHORTAGE
from services.orchestrator.domain.shortage import MANY
from tests.unit.orchestrator.loan_fakes import FakeHands, grab, loans_over

LONG = 60.0
SECOND = timedelta(seconds=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Shard:
    """Stands for all of them; takes back what is swept."""

    def store(self, _: str) -> Shard:
        return self

    async def sweep(self, lost: Any) -> None:
        pass


class Desk:
    def __init__(self) -> None:
        self.hands = FakeHands()
        shards: Any = Shard()
        self.loans: Loans = loans_over(shards, self.hands)

    async def said(self) -> None:
        """Let what is to be said be said."""
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


def jobs(count: int = 1, **fields: Any) -> list[NewJob]:
    return [NewJob(uuid4(), "n", "t", **fields) for _ in range(count)]


async def deliver(desk: Desk, count: int, part: Part | None = None) -> int:
    """Send so many jobs to the worker; how many left."""
    news, sent = jobs(count), len(desk.hands.sent)
    part = part or desk.loans.take(news)
    assert part is not None
    made = PutOutcome.CREATED, news[0].id, JobState.DISPATCHED, 2, NOW, NOW, True, True
    await desk.loans.deliver(part, "s0", news, PutAnswer([PutResult(*made)] * count, []))
    return sum(len(batch) for _, batch in desk.hands.sent[sent:])


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


async def waiting(desk: Desk, count: int) -> asyncio.Task[Part | None]:
    task = asyncio.create_task(desk.loans.room(jobs(count)))
    await desk.said()
    return task


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
