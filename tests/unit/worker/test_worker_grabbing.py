"""When a worker asks for work, and for how much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.foresight import most_ahead
from services.worker.domain.grabbing import Ask, GrabPlan, GrabSettings, Wait

SETTINGS = GrabSettings(patience=5.0, linger=0.002, share=0.25)


def plan(capacity: int = 100) -> GrabPlan:
    return GrabPlan(capacity, SETTINGS, backoff=lambda refusals: 0.1 * refusals)


def test_an_idle_worker_asks_for_all_it_can_take() -> None:
    assert plan(100).next_step(100, now=0.0) == Ask(1, 100)


def test_only_one_grab_is_outstanding() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    assert grabs.next_step(100, now=1.0) == Wait(5.0)


def test_an_answer_lets_it_ask_again_for_what_is_left() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    assert grabs.answered(1)
    assert grabs.next_step(40, now=0.1) == Ask(2, 40)


def test_a_grab_without_an_answer_is_given_up() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    assert grabs.next_step(100, now=5.0) == Ask(2, 100)
    assert not grabs.answered(1)
    assert grabs.answered(2)


def test_a_part_of_what_a_grab_brings_leaves_it_out_and_renews_the_patience() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    grabs.heard(1, 10, now=4.0)
    assert grabs.next_step(90, now=4.0) == Wait(9.0)
    assert grabs.answered(1)


def test_a_part_for_a_grab_that_was_given_up_renews_nothing() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    grabs.next_step(100, now=5.0)
    grabs.heard(1, 10, now=6.0)
    assert grabs.next_step(90, now=6.0) == Wait(10.0)


def test_a_call_makes_it_ask_again_if_its_grab_has_been_out_for_a_while() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    assert not grabs.called(0.4), "a scheduler may be about to answer"
    assert grabs.called(0.5)
    assert grabs.next_step(100, now=0.5) == Ask(2, 100)
    assert not grabs.called(0.6), "two schedulers may call at once"


def test_a_call_changes_nothing_for_a_worker_without_a_grab() -> None:
    grabs = plan()
    assert not grabs.called(1.0)
    assert grabs.next_step(0, now=1.0) == Wait()
    assert not grabs.called(2.0)


def test_crumbs_of_room_are_gathered_for_a_moment() -> None:
    grabs = plan(100)
    assert grabs.next_step(1, now=1.0) == Wait(1.002)
    assert grabs.next_step(3, now=1.001) == Wait(1.002)
    assert grabs.next_step(5, now=1.002) == Ask(1, 5)


def test_a_good_share_of_room_is_asked_for_at_once() -> None:
    grabs = plan(100)
    grabs.next_step(1, now=1.0)
    assert grabs.next_step(25, now=1.001) == Ask(1, 25)


@pytest.mark.parametrize("capacity", [1, 2, 3, 4])
def test_a_small_worker_never_lingers(capacity: int) -> None:
    assert plan(capacity).next_step(1, now=0.0) == Ask(1, 1)


def test_without_room_it_waits_for_a_change() -> None:
    assert plan().next_step(0, now=0.0) == Wait(None)


def test_with_nobody_there_it_backs_off() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    grabs.refused(1, now=0.0)
    assert grabs.next_step(100, now=0.0) == Wait(0.1)
    assert grabs.next_step(100, now=0.1) == Ask(2, 100)
    grabs.refused(2, now=0.1)
    assert grabs.next_step(100, now=0.2) == Wait(0.1 + 0.2)


def test_an_answer_ends_the_backing_off() -> None:
    grabs = plan()
    grabs.next_step(100, now=0.0)
    grabs.refused(1, now=0.0)
    grabs.next_step(100, now=1.0)
    grabs.answered(2)
    grabs.next_step(100, now=1.0)
    grabs.refused(3, now=1.0)
    assert grabs.next_step(100, now=1.0) == Wait(1.1)


# --- a moment ahead


def busy(capacity: int, per_second: int, now: float = 10.0) -> GrabPlan:
    """A plan whose handlers have ended at this pace for half a second before `now`."""
    settings = GrabSettings(patience=5.0, linger=0.002, share=0.25, ahead=0.03, stale=0.25)
    grabs = GrabPlan(capacity, settings, backoff=lambda refusals: 0.1)
    for step in range(25):
        grabs.next_step(None, now - 0.5 + step * 0.02)
        for _ in range(per_second // 50):
            grabs.ended()
    grabs.next_step(None, now)
    return grabs


def test_a_worker_in_full_swing_asks_for_what_will_have_room() -> None:
    grabs = busy(capacity=10, per_second=1000)
    step = grabs.next_step(0, now=10.0)
    assert isinstance(step, Ask)
    assert 25 <= step.credit <= 30
    assert grabs.answered(step.grab_no)
    assert grabs.next_step(-step.credit, now=10.0) == Wait(), "no more than once"


def test_crumbs_are_gathered_while_half_of_what_was_asked_for_ahead_waits() -> None:
    grabs = busy(capacity=10, per_second=1000)
    assert grabs.next_step(-20, now=10.0) == Wait(10.03)
    step = grabs.next_step(-10, now=10.0)
    assert isinstance(step, Ask), "half of it is gone"
    assert 15 <= step.credit <= 20


def test_crumbs_are_asked_for_in_the_end_while_others_wait() -> None:
    grabs = busy(capacity=10, per_second=1000)
    assert grabs.next_step(-20, now=10.0) == Wait(10.03)
    assert isinstance(grabs.next_step(-20, now=10.03), Ask)


def test_a_worker_that_runs_many_at_once_asks_for_a_whole_batch_or_for_nothing() -> None:
    assert busy(capacity=40, per_second=10_000).next_step(0, now=10.0) == Ask(1, most_ahead(40))
    assert busy(capacity=100, per_second=10_000).next_step(0, now=10.0) == Ask(1, 100)
    assert busy(capacity=100, per_second=1000).next_step(0, now=10.0) == Ask(1, 100)
    assert busy(capacity=100, per_second=500).next_step(0, now=10.0) == Wait()
    assert busy(capacity=1000, per_second=10_000).next_step(0, now=10.0) == Ask(1, 500)


def test_a_whole_batch_is_asked_for_once() -> None:
    grabs = busy(capacity=500, per_second=10_000)
    assert grabs.next_step(0, now=10.0) == Ask(1, 500)
    assert grabs.answered(1)
    assert grabs.next_step(-500, now=10.0) == Wait()


def test_slow_handlers_are_not_asked_ahead_for() -> None:
    assert busy(capacity=10, per_second=0).next_step(0, now=10.0) == Wait()


def test_a_small_worker_does_not_want_jobs_before_their_time_then() -> None:
    assert busy(capacity=2, per_second=100).next_step(1, now=10.0) == Ask(1, 3, waits=False)
    assert busy(capacity=2, per_second=0).next_step(1, now=10.0) == Ask(1, 1, waits=True)


def test_when_it_slows_down_the_grab_that_is_out_is_taken_back() -> None:
    grabs = busy(capacity=2, per_second=100)
    assert grabs.next_step(2, now=10.0) == Ask(1, 4, waits=False)
    assert not grabs.asks_too_much(2, now=10.2), "an answer may be on its way"
    assert grabs.next_step(2, now=10.2) == Wait(10.45)
    assert grabs.asks_too_much(2, now=10.45)
    assert grabs.next_step(2, now=10.45) == Ask(2, 2)
    assert not grabs.answered(1)
    assert grabs.next_step(2, now=10.46) == Wait(15.45), "there is nothing left to foresee"
    assert not grabs.asks_too_much(2, now=12.0)


def test_room_that_a_grab_has_used_in_parts_was_not_too_much_to_ask_for() -> None:
    grabs = busy(capacity=20, per_second=1000)
    step = grabs.next_step(20, now=10.0)
    assert isinstance(step, Ask)
    grabs.heard(step.grab_no, step.credit, now=10.2)
    assert not grabs.asks_too_much(0, now=10.5)


def test_a_grab_that_is_out_stays_while_there_is_as_much_room() -> None:
    grabs = busy(capacity=2, per_second=100)
    grabs.next_step(0, now=10.0)
    assert not grabs.asks_too_much(2, now=10.3)
    assert grabs.next_step(2, now=10.3) == Wait(10.55)


def test_types_with_limits_are_not_asked_ahead_for() -> None:
    grabs = busy(capacity=10, per_second=1000)
    grabs.foresee_nothing()
    assert grabs.next_step(0, now=10.0) == Wait()


def test_what_is_lent_cannot_be_foreseen() -> None:
    settings = GrabSettings(ahead=0.03)
    grabs = GrabPlan(100, settings, backoff=lambda refusals: 0.1, is_lent=True)
    grabs.next_step(None, now=1.0)
    for _ in range(100):
        grabs.ended()
    assert grabs.next_step(0, now=1.1) == Wait()
    assert grabs.next_step(1, now=1.1) == Ask(1, 1), "any of it is worth a grab"


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, float]]:
    step = st.tuples(
        st.sampled_from(["look", "answer", "refuse", "late"]),
        st.integers(0, 10),
        st.floats(0, 3, allow_nan=False),
    )
    return draw(st.lists(step, max_size=40))


@given(history=histories(), capacity=st.integers(1, 10))
def test_it_never_asks_beyond_its_room_and_never_sleeps_for_ever_with_room(
    history: list[tuple[str, int, float]], capacity: int
) -> None:
    grabs, now, last = plan(capacity), 0.0, 0
    for event, room, passed in history:
        now += passed
        if event == "answer":
            grabs.answered(grabs.grab_no)
        elif event == "refuse":
            grabs.refused(grabs.grab_no, now)
        elif event == "late":
            grabs.answered(grabs.grab_no - 1)
        was_outstanding = grabs.is_outstanding
        step = grabs.next_step(min(room, capacity), now)
        if isinstance(step, Ask):
            assert 0 < step.credit == min(room, capacity)
            assert step.grab_no == last + 1
            last = step.grab_no
        elif room > 0 and not was_outstanding:
            assert step.until is not None
            assert step.until > now
