"""Timers go by the shard's clock: never early, little late, each due time once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.timers import DueTimers
from services.scheduler.domain.times import ShardClock

TRIP = st.tuples(st.floats(0, 0.05), st.floats(0, 0.05))


@given(
    offset=st.integers(-(10**12), 10**12),
    trips=st.lists(TRIP, min_size=1, max_size=80),
    due_in=st.integers(0, 5_000_000),
)
def test_the_local_time_of_a_due_time_is_never_early(
    offset: int, trips: list[tuple[float, float]], due_in: int
) -> None:
    clock, now = ShardClock(), 1000.0
    for out, back in trips:
        shown = int((now + out) * 1e6) + offset
        clock.read(shown, now, now + out + back)
        now += 1.0
    due = int(now * 1e6) + offset + due_in
    fires = clock.local(due)
    assert int(fires * 1e6) + offset >= due
    slowest = max(out + back for out, back in trips)
    assert fires - (due - offset) / 1e6 <= slowest + 1e-4


@given(set_back=st.integers(200_000, 10**9), trips=st.lists(TRIP, min_size=1, max_size=30))
def test_a_clock_that_is_set_back_is_believed_at_once(
    set_back: int, trips: list[tuple[float, float]]
) -> None:
    clock, now, offset = ShardClock(), 1000.0, 5_000_000
    for out, back in trips:
        clock.read(int((now + out) * 1e6) + offset, now, now + out + back)
        now += 1.0
    offset -= set_back
    clock.read(int((now + 0.001) * 1e6) + offset, now, now + 0.002)
    due = int((now + 1) * 1e6) + offset
    assert int(clock.local(due) * 1e6) + offset >= due


def test_a_clock_that_was_set_back_is_another_clock() -> None:
    clock = ShardClock()
    clock.read(5_000_000, 1.0, 1.001)
    first = clock.shown(2.0)
    clock.read(6_000_000, 2.0, 2.001)
    assert clock.shown(3.0).clock == first.clock
    clock.read(1_000_000, 4.0, 4.001)
    assert clock.shown(5.0).clock != first.clock


def test_old_readings_are_forgotten() -> None:
    clock = ShardClock(believed=1.5)
    clock.read(1_000_000, 0.0, 0.0)
    for at in (1.0, 2.0):
        clock.read(int((at + 1) * 1e6) + 400, at, at + 0.001)
    assert 0 <= 11_000_000 + 400 - 1000 - clock.at(10.0) <= 2


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20_000)), max_size=40))
def test_every_due_time_goes_off_once_and_not_before_its_time(
    due_times: list[tuple[str, int]],
) -> None:
    timers = DueTimers()
    timers.add(due_times)
    timers.add(reversed(due_times))
    gone: list[tuple[int, str]] = []
    for now in range(0, 22_000, 500):
        gone += [(now, type_) for type_ in timers.pop(now)]
    assert len(timers) == 0
    for type_, due in due_times:
        fired = [now for now, name in gone if name == type_ and now >= due]
        assert fired
        assert min(fired) - due < 1500
    for now, type_ in gone:
        assert any(name == type_ and due <= now for name, due in due_times)


@given(
    due=st.integers(-2_000, 20_000),
    stored=st.integers(0, 12_000),
    phase=st.integers(0, 1_999),
    heard=st.integers(0, 50),
)
def test_whatever_is_stored_has_a_timer_when_it_is_due_or_is_claimed_when_it_is_heard_of(
    due: int, stored: int, phase: int, heard: int
) -> None:
    """Milliseconds. Looks every two seconds read `[look, look + 4 s)`. A nudge about what is due in
    a slot that was read already sets a timer; about what is due later it is left to the next look.
    """
    looks, told = range(phase, 30_000, 2_000), stored + heard
    slot_end = max((look + 4_000 for look in looks if look <= told), default=None)
    by_nudge = due <= stored or (slot_end is not None and due < slot_end)
    by_look = any(stored <= look <= due < look + 4_000 for look in looks)
    overdue = min(look for look in looks if look >= max(due, stored)) - max(due, stored)
    # Before the first look nobody keeps the shard; that look finds what has become due by then.
    assert by_nudge or by_look or (slot_end is None and overdue < 2_000)


@given(
    due=st.integers(0, 50_000),
    set_at=st.floats(0, 10),
    until=st.integers(0, 50_000),
    began=st.floats(0, 10),
)
def test_a_timer_is_left_out_only_if_a_claim_began_after_it_and_looked_beyond_it(
    due: int, set_at: float, until: int, began: float
) -> None:
    timers = DueTimers()
    timers.add([("t", due), ("u", due)], set_at)
    timers.covered("t", until, began)
    gone = timers.pop(60_000)
    assert "u" in gone
    # Rounded up to the millisecond, like the timer: what is due in the rest of it is not covered.
    assert ("t" not in gone) == (set_at < began and -(-due // 1000) * 1000 <= until)
    assert timers.add([("t", due)], set_at) == 1, "what is told again waits again"


def test_a_claim_does_not_cover_what_was_told_of_after_it_began() -> None:
    timers = DueTimers()
    timers.add([("t", 5_000)], 1.0)
    timers.covered("t", 9_000, 2.0)
    assert timers.add([("t", 4_900)], 3.0) == 0  # another job of the same millisecond
    assert timers.pop(5_000) == ["t"]


def test_due_times_of_one_millisecond_are_one_timer() -> None:
    timers = DueTimers()
    assert timers.add(("t", due) for due in (1, 2, 999, 1000)) == 1
    assert timers.next() == 1000
    assert timers.pop(999) == []
    assert timers.pop(1000) == ["t"]


def test_the_number_of_timers_is_bounded_and_the_earliest_stay() -> None:
    timers = DueTimers(most=2)
    assert timers.add(("t", due * 1000) for due in (1, 2, 3)) == 2
    assert timers.pop(10_000) == ["t"]
    assert timers.next() is None
