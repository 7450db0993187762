"""Ways to break the simulated mesh, so that its judge can be seen to object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from services.mesh.jobs.reports import Succeeded
from services.mesh.jobs.states import JobState
from services.orchestrator.app.storing import Storing
from services.scheduler.app.rescuing import Rescuer
from services.scheduler.app.sweeping import Sweeper
from tests.simulation.shard import ModelShard


async def _idle(self: Any) -> Mapping[str, int]:
    return {}


def no_sweeper() -> None:
    Sweeper.run_once = _idle  # type: ignore[method-assign, assignment]


def no_rescuer() -> None:
    Rescuer.run_once = _idle  # type: ignore[method-assign, assignment]
    Rescuer.rescue_lost = _idle  # type: ignore[method-assign, assignment]


def no_fence() -> None:
    report = ModelShard._report

    def any_success(self: ModelShard, said: Any) -> Any:
        row = self.rows.get(said.job_id)
        live = (JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING)
        if isinstance(said, Succeeded) and row is not None and row.state in live and row.fence:
            return self._succeed(row, said)
        return report(self, said)

    ModelShard._report = any_success  # type: ignore[method-assign]


def redirect_on_unknown() -> None:
    async def give_up(self: Any, shard: str, jobs: Any, epoch: int) -> Any:
        from services.mesh.errors import ShardUnavailable

        raise ShardUnavailable(shard)

    Storing._settle = give_up  # type: ignore[method-assign]


BREAKS: Mapping[str, Callable[[], None]] = {
    "no-sweeper": no_sweeper,
    "no-rescuer": no_rescuer,
    "no-fence": no_fence,
    "redirect-on-unknown": redirect_on_unknown,
}
