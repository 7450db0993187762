"""How often watched jobs are compared with their rows: what no hint told is found by that alone."""

from contextlib import aclosing

from services.enqueue.app.watches import MOST_REST_SECONDS
from tests.unit.enqueue.watch_stand import J, K, Stand, news


class SlowRows:
    """Let reads of changes take their time."""

    def __init__(self, stand: Stand) -> None:
        self.seconds, self.reads = 0.0, 0
        self._stand, self._read = stand, stand.rows.changes_after
        stand.rows.changes_after = self.changes_after

    async def changes_after(self, seen):
        self._stand.clock.advance(self.seconds)
        self.reads += bool(seen)
        return await self._read(seen)


async def test_a_read_that_waited_for_a_frozen_orchestrator_does_not_put_off_the_next():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.add(K)
    rows = SlowRows(stand)
    async with aclosing(stand.hub.watch("n", [J], "")) as early:
        await anext(early)
        stand.clock.advance(3)
        async with aclosing(stand.hub.watch("n", [K], "")) as late:
            await anext(late)  # read just now: the comparison leaves it out
            rows.seconds = 6.0
            await stand.hub.run_once()
            rows.seconds = 0.0
            stand.rows.add(K, ended=True)  # and its hint gets lost
            await stand.reread(2)
            assert (await news(late)).message == "k v2"


async def test_comparisons_that_are_always_long_have_rests_between_them():
    stand = Stand()
    stand.rows.add(J)
    rows = SlowRows(stand)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        rows.seconds = 1.0
        await stand.reread()
        await stand.reread(2)
        assert rows.reads == 2
        await stand.reread(5)
        assert rows.reads == 2  # nine seconds for one
        await stand.reread(5)
        assert rows.reads == 3


async def test_no_rest_is_longer_than_a_caller_would_wait():
    stand = Stand()
    stand.rows.add(J)
    rows = SlowRows(stand)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        rows.seconds = 60.0
        await stand.reread()
        await stand.reread()
        rows.seconds = 0.0
        stand.rows.add(J, ended=True)
        await stand.reread(MOST_REST_SECONDS)
        assert (await news(watch)).message == "j v2"
