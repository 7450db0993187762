"""The purger: in which order it goes, by whose rules, and when it does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from services.mesh.jobs.type_settings import Retention, RetentionRules, TypeSettings
from services.mesh.store.answers import PurgeStep
from services.scheduler.app.purging import Purger, PurgeRules
from tests.unit.scheduler.scheduler_fakes import Bench

HOUR = timedelta(hours=1)
BRIEF = Retention(succeeded=HOUR)


def purger(bench: Bench, keeps: bool = True) -> Purger:
    types = cast(Any, bench.types)
    rules = PurgeRules(order=HOUR)
    return Purger("s0", bench.shards, types, bench.clock, bench.measures, rules, lambda: keeps)


async def test_it_shortens_the_order_then_walks_to_the_end() -> None:
    async with Bench("s0") as bench:
        bench.types.set("t", TypeSettings("t", retention=BRIEF))
        bench.types.set("u", TypeSettings("u", max_running=1))
        counts = await purger(bench).run_once()
        assert (counts["jobs"], counts["names"]) == (6, 1)
        (first, span), *steps = bench.stores["s0"].purges
        assert (first, span) == ("order", HOUR)
        assert [what for what, _ in steps] == ["jobs"] * 3
        # Only types that say something are named; the rest is the mesh's word.
        assert steps[0][1] == RetentionRules(PurgeRules().mesh, {"t": BRIEF})


async def test_each_step_goes_by_the_settings_of_its_moment() -> None:
    async with Bench("s0") as bench:
        bench.types.set("t", TypeSettings("t", retention=BRIEF))
        store, purge = bench.stores["s0"], bench.stores["s0"].purge_jobs

        async def slowly(rules: RetentionRules, limit: int = 500) -> PurgeStep:
            bench.types.set("t", TypeSettings("t", retention=Retention(succeeded=900 * HOUR)))
            return await purge(rules, limit)

        store.purge_jobs = slowly  # type: ignore[method-assign]
        await purger(bench).run_once()
        told = [rules.types["t"].succeeded for what, rules in store.purges if what == "jobs"]
        assert told == [HOUR, 900 * HOUR, 900 * HOUR]


async def test_it_leaves_a_shard_that_is_not_ours_and_settings_that_are_not_known() -> None:
    async with Bench("s0") as bench:
        await purger(bench, keeps=False).run_once()
        bench.types.synced = False
        await purger(bench).run_once()
        assert not bench.stores["s0"].purges
