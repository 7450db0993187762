"""Streams and calls under one quota: each gets its share, and together no more than the rate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.enqueue.domain.quotas import PATIENCE, Quotas, Rate
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
    turn = (PATIENCE * parcel + call) / per_second + tenant.step
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
