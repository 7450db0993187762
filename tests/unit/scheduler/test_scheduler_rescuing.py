"""All that lost workers hold is taken back at once, whatever happens to it meanwhile."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Any, cast

from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import Rescue
from services.scheduler.app.rescuing import Rescuer
from tests.unit.scheduler.scheduler_fakes import Bench, job


def rescued() -> JobEvent:
    now = datetime.now(UTC)
    what = (job("t").id, 3, JobState.SCHEDULED, Cause.RESCUED, now, 1, 1, "w1", now)
    return JobEvent(*what, None, None, "default", "t")


async def test_a_rescue_goes_on_where_some_of_a_full_page_had_moved_on() -> None:
    async with Bench("s0") as bench:
        store = bench.stores["s0"]
        store.rescues = deque(
            [
                Rescue([rescued()], more=True),
                Rescue([], more=True),
                Rescue([rescued()], more=False),
            ]
        )
        workers = cast(Any, None)  # the watch told of the loss: nobody asks who lives
        rescuer = Rescuer("s0", bench.shards, workers, bench.board, bench.broker, bench.measures)
        rescuer.lost("w1")
        assert await rescuer.rescue_lost() == {"rescued": 2}
        assert store.rescues_asked == 3
        assert await rescuer.rescue_lost() == {}
