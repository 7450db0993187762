"""Calls end when their time is over: not before, hardly after, and by one timer."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from services.mesh.rpc.http2.call import Call
from services.mesh.rpc.http2.deadlines import GRAIN, Deadlines
from tests.simulation.loop import VirtualLoop

#: When a call comes, how long it may take, and when it is over by itself, if it is.
CALLS = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.sampled_from([0.0, 1e-9, 0.05, GRAIN, 0.11]) | st.floats(0, 5),
        st.none() | st.floats(0, 5),
    ),
    max_size=8,
)


class StandIn:
    """A call, as far as its deadline goes."""

    def __init__(self, timeout: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.deadline = self.began + timeout
        self.expired: list[float] = []
        self.has_expired = asyncio.Event()

    def expire(self) -> None:
        self.expired.append(self.loop.time())
        self.has_expired.set()


def as_call(call: StandIn) -> Call:
    return cast(Call, call)


def timers_of(loop: VirtualLoop) -> list[float]:
    """Of all that will still do something."""
    return [when for when, _, timer in loop._timers if not timer.cancelled()]


def virtually(work: Any) -> Any:
    return VirtualLoop(Random(0)).run(work)


async def live(deadlines: Deadlines, comes: float, timeout: float, lasts: float | None) -> StandIn:
    await asyncio.sleep(comes)
    call = StandIn(timeout)
    deadlines.add(as_call(call))
    if lasts is None:
        await call.has_expired.wait()
    else:
        await asyncio.sleep(lasts)
    call.has_expired.set()
    deadlines.discard(as_call(call))
    return call


@given(CALLS)
def test_every_call_ends_in_time_and_those_that_were_over_do_not(
    calls: list[tuple[float, float, float | None]],
) -> None:
    async def main() -> list[StandIn]:
        deadlines = Deadlines()
        lives = await asyncio.gather(*(live(deadlines, *call) for call in calls))
        await asyncio.sleep(20)
        return list(lives)

    for call, (_, timeout, lasts) in zip(virtually(main()), calls, strict=True):
        for moment in call.expired:
            assert call.deadline <= moment <= max(call.deadline, call.began) + GRAIN + 1e-5
        assert len(call.expired) <= 1
        if lasts is None or lasts > timeout + 1.1 * GRAIN:
            assert call.expired
        elif lasts < timeout - 1e-5:
            assert not call.expired


def test_whatever_comes_there_is_one_timer() -> None:
    async def main() -> None:
        deadlines, loop = Deadlines(), cast(VirtualLoop, asyncio.get_running_loop())
        calls = [StandIn(timeout) for timeout in (5.0, 9.0, 1.0, 0.0, 3.0, 1.0)]
        for call in calls:
            deadlines.add(as_call(call))
            assert len(timers_of(loop)) == 1
        for call in sorted(calls, key=lambda call: call.deadline)[:-1]:
            await call.has_expired.wait()
            assert len(timers_of(loop)) == 1
        await calls[1].has_expired.wait()
        assert timers_of(loop) == []

    virtually(main())


def test_calls_that_end_in_time_start_no_timers() -> None:
    async def main() -> None:
        deadlines, loop = Deadlines(), asyncio.get_running_loop()
        for _ in range(100):
            call = StandIn(5.0)
            deadlines.add(as_call(call))
            deadlines.discard(as_call(call))
            await asyncio.sleep(0.001)
        assert len(cast(VirtualLoop, loop)._timers) == 1

    virtually(main())


def test_when_nobody_is_left_the_timer_ends() -> None:
    async def main() -> None:
        deadlines, loop = Deadlines(), cast(VirtualLoop, asyncio.get_running_loop())
        call = StandIn(1.0)
        deadlines.add(as_call(call))
        deadlines.discard(as_call(call))
        deadlines.discard(as_call(call))
        await asyncio.sleep(2.0)
        assert (timers_of(loop), call.expired) == ([], [])
        later = StandIn(1.0)
        deadlines.add(as_call(later))
        await later.has_expired.wait()

    virtually(main())


def test_what_ends_with_another_is_not_ended_too() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        first, second = StandIn(1.0), StandIn(5.0)

        def expire() -> None:
            deadlines.discard(as_call(second))
            first.has_expired.set()

        first.expire = expire  # type: ignore[method-assign]
        for call in (first, second):
            deadlines.add(as_call(call))
        await first.has_expired.wait()
        await asyncio.sleep(10.0)
        assert second.expired == []

    virtually(main())


def test_one_that_comes_as_another_ends_has_its_time() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        first, second = StandIn(1.0), StandIn(3.0)

        def expire() -> None:
            deadlines.add(as_call(second))
            first.has_expired.set()

        first.expire = expire  # type: ignore[method-assign]
        deadlines.add(as_call(first))
        await second.has_expired.wait()
        assert second.expired[0] >= second.deadline

    virtually(main())


def test_who_is_closed_wakes_nobody() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        deadlines.close()
        call = StandIn(1.0)
        deadlines.add(as_call(call))
        deadlines.close()
        deadlines.close()
        await asyncio.sleep(5.0)
        assert call.expired == []

    virtually(main())


async def test_on_a_real_loop_calls_end_in_the_order_of_their_deadlines() -> None:
    deadlines = Deadlines()
    late, soon = StandIn(3 * GRAIN), StandIn(0.001)
    ended: list[StandIn] = []
    for call in (late, soon):
        call.expire = lambda call=call: (ended.append(call), call.has_expired.set())  # type: ignore
        deadlines.add(as_call(call))
    await late.has_expired.wait()
    assert ended == [soon, late]
    assert asyncio.get_running_loop().time() >= late.deadline
