"""Schedules whose firing failed are fired again soon, not only after the next look."""

from __future__ import annotations

import pytest

from services.mesh.errors import ShardBusy
from services.scheduler.app.firing import ScheduleFirer
from tests.unit.scheduler.scheduler_fakes import Bench


async def test_a_firing_that_was_given_up_is_due_again() -> None:
    async with Bench("s0") as bench:
        firer = ScheduleFirer(
            "s0",
            bench.shards,
            bench.board,
            bench.broker,
            bench.measures,
            bench.clock,
            1.5,
            lambda: None,
        )
        bench.stores["s0"].gives_up = 1
        with pytest.raises(ShardBusy):
            await firer.run_once()
        assert firer.is_due
        await firer.run_once()
        assert not firer.is_due
        firer.forget()
