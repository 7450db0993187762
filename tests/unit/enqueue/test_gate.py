"""Who is let in: quotas of namespaces, and what the process can carry."""

from __future__ import annotations

import asyncio

import pytest

from services.enqueue.app.gate import Gate
from services.enqueue.config import EnqueueConfig
from services.enqueue.domain import quotas
from services.enqueue.domain.quotas import Quotas, Rate
from services.mesh.clock import ManualClock
from services.mesh.errors import Overloaded, QuotaExceeded
from services.mesh.rpc.work import WorkLimit
from services.mesh.telemetry.metrics import Metrics

TEN = Rate(10.0, 20.0)


class Stand:
    """A gate and what it is made of."""

    def __init__(self, usual: Rate | None = None, items: int = 100, size: int = 1000) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.work = WorkLimit(items, size, self.metrics)
        self.gate = Gate(Quotas(usual, {"free": None}), self.work, self.clock, self.metrics)

    def refused(self, reason: str) -> float | None:
        return self.metrics.value("jobmesh_refused_jobs_total", {"reason": reason})


def test_what_is_under_way_is_counted_until_it_is_answered() -> None:
    stand = Stand()
    with stand.gate.admitted("n", 60, lambda: 10):
        with pytest.raises(Overloaded) as caught, stand.gate.admitted("n", 41, lambda: 10):
            pytest.fail("was let in")
        assert caught.value.retry_after
        with stand.gate.admitted("n", 40, lambda: 10):
            assert stand.metrics.value("jobmesh_admitted_jobs") == 100
    assert stand.metrics.value("jobmesh_admitted_jobs") == 0
    assert stand.refused("OVERLOADED") == 41
    with stand.gate.admitted("n", 100, lambda: 10):
        pass


def test_bytes_are_bounded_too() -> None:
    stand = Stand()
    with (
        stand.gate.admitted("n", 1, lambda: 600),
        pytest.raises(Overloaded, match="600 bytes"),
        stand.gate.admitted("n", 1, lambda: 600),
    ):
        pytest.fail("was let in")
    assert stand.metrics.value("jobmesh_admitted_bytes") == 0


def test_what_is_too_large_for_the_limit_alone_still_gets_its_turn() -> None:
    stand = Stand()
    with stand.gate.admitted("n", 500, lambda: 5000):
        pass


def test_work_that_failed_is_counted_out() -> None:
    stand = Stand()
    with pytest.raises(RuntimeError), stand.gate.admitted("n", 60, lambda: 10):
        raise RuntimeError
    assert stand.work.items == 0


def test_a_namespace_over_its_quota_is_told_when_it_fits_and_others_are_not_affected() -> None:
    stand = Stand(TEN)
    with stand.gate.admitted("noisy", 20, lambda: 1):
        pass
    with pytest.raises(QuotaExceeded) as caught, stand.gate.admitted("noisy", 5, lambda: 1):
        pytest.fail("was let in")
    assert caught.value.retry_after == pytest.approx(0.5)
    assert caught.value.metadata["namespace"] == "noisy"
    with stand.gate.admitted("other", 20, lambda: 1), stand.gate.admitted("free", 50, lambda: 1):
        pass
    stand.clock.advance(0.5)
    with stand.gate.admitted("noisy", 5, lambda: 1):
        pass
    assert stand.refused("QUOTA_EXCEEDED") == 5


def test_a_batch_larger_than_the_burst_gets_in_and_is_paid_for_afterwards() -> None:
    stand = Stand(TEN)
    with stand.gate.admitted("n", 50, lambda: 1):
        pass
    with pytest.raises(QuotaExceeded) as caught, stand.gate.admitted("n", 1, lambda: 1):
        pytest.fail("was let in")
    assert caught.value.retry_after == pytest.approx(3.1)  # a debt of 30, and one


def test_what_is_refused_for_another_reason_costs_no_quota() -> None:
    stand = Stand(TEN, items=10)
    with stand.gate.admitted("free", 10, lambda: 1):
        for _ in range(5):
            with pytest.raises(Overloaded), stand.gate.admitted("n", 20, lambda: 1):
                pytest.fail("was let in")
    with stand.gate.admitted("n", 20, lambda: 1):
        pass


async def test_a_stream_is_slowed_down_to_the_quota() -> None:
    stand = Stand(Rate(1000.0, 10.0))
    await stand.gate.paced("n", 10)
    waiting = asyncio.create_task(stand.gate.paced("n", 10))
    await asyncio.sleep(0)
    assert not waiting.done()
    stand.clock.advance(0.01)
    async with asyncio.timeout(5):
        await waiting


async def test_streams_of_a_namespace_go_one_after_the_other() -> None:
    stand = Stand(Rate(1000.0, 10.0))
    await stand.gate.paced("n", 20)
    passed: list[str] = []

    async def stream(name: str, jobs: int) -> None:
        await stand.gate.paced("n", jobs)
        passed.append(name)

    large = asyncio.create_task(stream("large", 9))
    small = asyncio.create_task(stream("small", 1))
    gone = asyncio.create_task(stream("gone", 1))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    stand.clock.advance(0.011)  # the small one would fit
    with stand.gate.admitted("n", 1, lambda: 1):
        pass
    stand.clock.advance(1.0)
    async with asyncio.timeout(5):
        await asyncio.gather(large, small)
    assert passed == ["large", "small"]
    del large, small, gone
    assert not stand.gate._lines, "kept only while somebody waits"
    await stand.gate.paced("free", 10_000)


def test_buckets_are_bounded_and_the_busy_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MOST_BUCKETS", 10)
    book = Quotas(TEN, {})
    book.take("busy", 20, 9.0)
    for number in range(100):
        book.take(f"n{number}", 1, 10.0 + number / 1000)
        assert len(book._buckets) <= 10
    for number in range(9):  # all rested: only the busy one says something
        book.take(f"m{number}", 1, 10.2)
    with pytest.raises(QuotaExceeded):
        book.take("m8", 20, 10.2)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("0", None), ("5", Rate(5, 10)), ("0.1", Rate(0.1, 1)), ("500:2", Rate(500, 2))],
)
def test_quotas_as_they_are_written(text: str, rate: Rate | None) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "many", "-1", "5:0", "0:5", "nan", "inf", "5:"])
def test_what_is_no_quota_is_refused_at_boot(text: str) -> None:
    (problem,) = EnqueueConfig(quotas={"blue": text}).problems()
    assert problem.startswith("blue: ")


def test_what_the_quota_refuses_is_not_measured() -> None:
    stand = Stand(TEN)
    with stand.gate.admitted("n", 20, lambda: 1):
        pass
    with (
        pytest.raises(QuotaExceeded),
        stand.gate.admitted("n", 5, lambda: pytest.fail("was measured")),
    ):
        pytest.fail("was let in")


def test_who_sends_more_than_its_rate_is_stored_with_pauses() -> None:
    stand = Stand(TEN)
    with stand.gate.admitted("n", 4, lambda: 1):
        stand.gate.went("n")
        assert (stand.gate.is_spent("n"), stand.gate.pause("n")) == (False, 0.0)
    with stand.gate.admitted("n", 1, lambda: 1):
        assert stand.gate.is_spent("n")
        assert stand.gate.pause("n") == pytest.approx(quotas.PAUSE_SECONDS)
    stand.clock.advance(0.09)
    assert stand.gate.pause("n") == pytest.approx(quotas.PAUSE_SECONDS - 0.09)
    stand.clock.advance(0.01)  # a token has come
    assert (stand.gate.is_spent("n"), stand.gate.pause("n")) == (False, 0.0)


def test_who_has_no_quota_never_pauses() -> None:
    stand = Stand()
    with stand.gate.admitted("n", 99, lambda: 1):
        stand.gate.went("n")
        assert (stand.gate.is_spent("n"), stand.gate.pause("n")) == (False, 0.0)


@pytest.mark.parametrize("calls", [1, 4])
def test_pauses_leave_a_caller_its_whole_rate(calls: int) -> None:
    """One that sends the next job as soon as the last was answered, however long that took."""
    stand = Stand(TEN)
    stored, began = 0, stand.clock.monotonic()
    while stand.clock.monotonic() < began + 60:
        try:
            for _ in range(calls):
                with stand.gate.admitted("n", 1, lambda: 1):
                    stored += 1
        except QuotaExceeded as error:
            stand.clock.advance(error.retry_after or 0)
        stand.clock.advance(stand.gate.pause("n") + 0.001)
        stand.gate.went("n")
    assert stored >= 60 * TEN.per_second
