"""The shards' clocks, as workers see them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.clocks import MOST_CLOCKS, ShardClocks

TRUE_OFFSET = 1_790_000_000_000_000


@given(
    st.lists(
        st.tuples(st.floats(0.001, 30), st.floats(0, 0.2), st.floats(0, 0.01)),
        min_size=1,
        max_size=30,
    ),
    st.floats(-0.00005, 0.00005),
)
def test_the_clock_is_never_seen_ahead_and_a_slow_message_makes_it_no_later_than_a_quick_one(
    batches: list[tuple[float, float, float]], drift: float
) -> None:
    """Each batch comes a while after the one before, took a while, and was sent with some slack."""
    clocks, at, least = ShardClocks(), 1000.0, float("inf")

    def true_us(local: float) -> float:
        return TRUE_OFFSET + local * 1e6 * (1 + drift)

    began = at
    for pause, took, slack in batches:
        at += pause
        told = int(true_us(at - took) - slack * 1e6)
        seen = clocks.seen(7, told, at)
        least = min(least, took + slack)
        assert told <= seen <= true_us(at) + 1
        allowed = least + 0.0002 * (at - began) + 0.00001
        assert true_us(at) - seen <= allowed * 1e6


def test_clocks_are_told_apart_and_their_number_is_bounded() -> None:
    clocks = ShardClocks()
    assert clocks.seen(1, 9_000_000, 1.0) == 9_000_000
    assert clocks.seen(2, 2_000_000, 1.0) == 2_000_000, "another clock"
    assert clocks.seen(1, 2_000_000, 1.0) == 9_000_000
    for number in range(3, 3 + MOST_CLOCKS):
        clocks.seen(number, 1_000_000, 1.0)
    assert clocks.seen(1, 2_000_000, 1.0) == 2_000_000, "forgotten"
