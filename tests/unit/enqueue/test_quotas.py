"""Streams and calls under one quota: each gets its share, and together no more than the rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.enqueue.domain.quotas import CALL_PATIENCE, PATIENCE, Quotas, Rate
from services.mesh.errors import QuotaExceeded


class Tenant:
    """A namespace with one stream, always waiting, and callers that take whatever they get.

    Time passes in steps; within each the callers come before the stream.
    """

    def __init__(self, rate: Rate, parcel: int, call: int) -> None:
        self.quotas, self.rate = Quotas(rate, {}), rate
        self.parcel, self.call = parcel, call
        self.step = 0.5 / rate.per_second
        self.now = self.since = 0.0
        self.called = 0
        self.waits: list[float] = []

    def pass_seconds(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += self.step
            self._call()
            self._stream()

    def _call(self) -> None:
        try:
            while self.call:
                self.quotas.take("n", self.call, self.now)
                self.called += self.call
        except QuotaExceeded:
            pass

    def _stream(self) -> None:
        while self.quotas.reserve("n", self.parcel, self.since, self.now) <= 0:
            self.waits.append(self.now - self.since)
            self.since = self.now

    @property
    def streamed(self) -> int:
        return self.parcel * len(self.waits)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1.0, 100.0),
    st.floats(1.0, 50.0),
    st.integers(1, 100),
    st.integers(1, 5),
)
def test_a_stream_and_greedy_callers_both_get_on(
    per_second: float, burst: float, parcel: int, call: int
) -> None:
    rate = Rate(per_second, burst)
    tenant = Tenant(rate, parcel, call)
    # The callers may owe for one call when its turn comes.
    turn = (PATIENCE * parcel + 2 * call) / per_second + tenant.step
    seconds = 10 * turn
    tenant.pass_seconds(seconds)
    assert tenant.waits
    assert max(tenant.waits) <= turn + tenant.step
    given_out = burst + per_second * tenant.now
    assert tenant.streamed + tenant.called <= given_out + parcel + call
    assert tenant.called >= 0.25 * per_second * seconds - parcel - call


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 100.0), st.floats(1.0, 50.0), st.integers(1, 100))
def test_a_stream_alone_has_the_whole_rate(per_second: float, burst: float, parcel: int) -> None:
    tenant = Tenant(Rate(per_second, burst), parcel, 0)
    seconds = 10 * (parcel + burst) / per_second
    tenant.pass_seconds(seconds)
    assert tenant.streamed >= per_second * seconds - burst - 2 * parcel - 1
    assert tenant.streamed <= burst + per_second * tenant.now + parcel


def test_a_call_larger_than_the_burst_still_needs_a_full_bucket() -> None:
    quotas = Quotas(Rate(10.0, 20.0), {})
    quotas.take("n", 1, 0.0)
    with pytest.raises(QuotaExceeded):
        quotas.take("n", 50, 0.0)
    quotas.take("n", 50, 0.1)


class Caller:
    """Submits batches of one size, one after the other, and comes back when it was told to."""

    def __init__(self, size: int) -> None:
        self.size, self.since, self.due = size, 0.0, 0.0
        self.waits: list[float] = []

    def come(self, quotas: Quotas, now: float) -> None:
        if now < self.due:
            return
        try:
            quotas.take("n", self.size, now)
        except QuotaExceeded as error:
            self.due = now + (error.retry_after or 0.0)
        else:
            self.waits.append(now - self.since)
            self.since = now


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1.0, 100.0),
    st.floats(1.0, 50.0),
    st.sets(st.integers(1, 6), min_size=1, max_size=3),
)
def test_large_calls_get_on_beside_a_trickle_of_single_ones(
    per_second: float, burst: float, sizes: set[int]
) -> None:
    """A call as large as the burst needed a full bucket, which singles never let come about."""
    quotas, step = Quotas(Rate(per_second, burst), {}), 0.5 / per_second
    callers = [Caller(2**size) for size in sorted(sizes)]
    total = sum(caller.size for caller in callers)
    # Each has its turn, is paid for, and is noticed by the next when that one comes back.
    longest = (CALL_PATIENCE + 3) * total * len(callers) / per_second + 10 * step
    now, singles = 0.0, 0
    while now < 4 * longest:
        now += step
        try:
            quotas.take("n", 1, now)
            singles += 1
        except QuotaExceeded:
            pass
        for caller in callers:
            caller.come(quotas, now)
    for caller in callers:
        assert caller.waits
        assert max([*caller.waits, now - caller.since]) <= longest
    batched = sum(caller.size * len(caller.waits) for caller in callers)
    assert batched + singles <= burst + per_second * now + max(caller.size for caller in callers)
    assert singles >= 0.5 * per_second * now - burst - total


def test_a_call_that_does_not_come_back_keeps_nobody_waiting() -> None:
    quotas = Quotas(Rate(1.0, 8.0), {})
    quotas.take("n", 8, 0.0)
    for size in (8, 4):  # the first gives up
        with pytest.raises(QuotaExceeded):
            quotas.take("n", size, 0.0)
    for now in range(1, 40):
        quotas.take("n", 1, float(now))
        try:
            quotas.take("n", 4, float(now))
        except QuotaExceeded:
            continue
        break
    assert 16 <= now <= 20  # the other has waited for its own turn only


def test_a_single_call_is_never_let_in_on_debt() -> None:
    quotas = Quotas(Rate(1.0, 1.0), {})
    quotas.take("n", 1, 0.0)
    for now in (0.3, 0.6, 0.9):
        with pytest.raises(QuotaExceeded):
            quotas.take("n", 1, now)
    quotas.take("n", 1, 1.0)
