"""What running handlers say: progress, and checkpoints that later attempts go on from.

Neither is a transition: no event, no version. Both are fenced like one.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from services.mesh.jobs.model import JobProgress, Payload
from services.mesh.jobs.reports import Checkpointed, Progressed
from services.mesh.jobs.states import JobState
from services.mesh.store.arrays import Blobs, Doubles, Integers, Texts, Times, Uuids
from services.mesh.store.base import ShardBase
from services.mesh.store.rows import STATES

#: A report, by its job, its fence and its kind.
Said = tuple[int, int, type]


class Saying(ShardBase):
    """Notes progress, stores checkpoints. Reports must be in the order of their ids."""

    async def _note(
        self, reports: Sequence[Progressed], states: dict[Said, JobState]
    ) -> list[JobProgress]:
        """Adds where the jobs of those that were accepted stand to `states`."""
        if not reports:
            return []
        said = [report.progress for report in reports]
        params = _dispatches(reports) | {
            "done": Doubles([progress.done for progress in said]),
            "totals": Doubles([progress.total for progress in said]),
            "messages": Texts([progress.message for progress in said]),
            "times": Times([progress.time for progress in said]),
        }
        accepted: list[JobProgress] = []
        for place, state, namespace, type_, attempt in await self._fetch("note_progress", params):
            report = reports[place - 1]
            states[said_in(report)] = STATES[state]
            about = (report.job_id, namespace, type_, attempt)
            accepted.append(JobProgress(*about, report.progress))
        return accepted

    async def _store_checkpoints(
        self, reports: Sequence[Checkpointed], states: dict[Said, JobState]
    ) -> None:
        """The same for checkpoints."""
        if not reports:
            return
        params = _dispatches(reports) | {
            "data": Blobs([report.state.data for report in reports]),
            "content_types": Texts([report.state.content_type for report in reports]),
        }
        for place, state in await self._fetch("store_checkpoints", params):
            states[said_in(reports[place - 1])] = STATES[state]

    async def _checkpoints(self, ids: Sequence[UUID]) -> dict[UUID, Payload]:
        if not ids:
            return {}
        rows = await self._fetch("checkpoints", {"ids": Uuids(ids)})
        return {job_id: Payload.inline(data, kind) for job_id, kind, data in rows}

    async def _forget_checkpoints(self, ids: Sequence[UUID]) -> None:
        if ids:
            await self._fetch("forget_checkpoints", {"ids": Uuids(ids)})


def said_in(report: Progressed | Checkpointed) -> Said:
    return report.job_id.int, report.fence, type(report)


def _dispatches(reports: Sequence[Progressed] | Sequence[Checkpointed]) -> dict[str, object]:
    return {
        "ids": Uuids([r.job_id for r in reports]),
        "fences": Integers([r.fence for r in reports]),
        "workers": Texts([r.worker_id for r in reports]),
    }
