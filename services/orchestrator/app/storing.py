"""New jobs into the shard that was chosen for them, and what is known of them then."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import uuid4

from services.mesh.clock import Clock
from services.mesh.errors import (
    IdempotencyConflict,
    MeshError,
    OutcomeUnknown,
    ShardUnavailable,
    StaleEpoch,
    UniqueConflict,
)
from services.mesh.jobs.alike import AlikeJobs
from services.mesh.jobs.model import NewJob
from services.mesh.jobs.record import record
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.shards import Shards
from services.orchestrator.domain.lent import Part

log = logging.getLogger(__name__)

#: A try that fails so has stored nothing.
CERTAIN = (ShardUnavailable, StaleEpoch)


@record
class Stored:
    """A job that is in a shard."""

    shard: str
    result: PutResult


Outcome = Stored | MeshError


class Storing:
    """Writes jobs into one shard, into the hands of a worker if one waits for them."""

    def __init__(self, shards: Shards, loans: Loans, clock: Clock) -> None:
        self._shards, self._loans, self._clock = shards, loans, clock

    async def store(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        """Write them, and find out what became of them if the answer gets lost. Only an error that
        is CERTAIN says that they may go elsewhere.
        """
        part = await self._loans.room(jobs)
        began = self._clock.monotonic()
        if part is not None:
            answer = await self._handed(part, shard, jobs, epoch)
        else:
            answer = await self._usual(shard, jobs, epoch)
        answer.took = self._clock.monotonic() - began
        return answer

    async def _usual(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        try:
            return await self._written(shard, jobs, epoch)
        except OutcomeUnknown:
            # The same rows under the same ids: if they are there, nothing happens; if not, now.
            return await self._settle(shard, jobs, epoch)

    def outcomes(self, shard: str, answer: PutAnswer) -> list[Outcome]:
        """What became of each job, in order."""
        return [self._outcome(shard, result) for result in answer.results]

    async def _handed(
        self, part: Part, shard: str, jobs: Sequence[NewJob], epoch: int
    ) -> PutAnswer:
        """Store jobs into the hands of a worker that has room for them, and send them there."""
        try:
            answer = await self._into_hands(part, shard, jobs, epoch)
        except BaseException:
            self._loans.give_back(part)
            raise
        await self._loans.deliver(part, shard, jobs, answer)
        return answer

    async def _into_hands(
        self, part: Part, shard: str, jobs: Sequence[NewJob], epoch: int
    ) -> PutAnswer:
        store = self._shards.store(shard)
        try:
            return await store.put_jobs(jobs, epoch, part.grab.worker_id)
        except OutcomeUnknown:
            # If they are there, they are in its hands; if not, they go the usual way now.
            return await self._settle(shard, jobs, epoch)

    async def _written(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        store = self._shards.store(shard)
        if not isinstance(jobs, AlikeJobs) and jobs[0].ties is not None:
            return await store.put_tied_jobs(jobs, epoch)
        return await store.put_jobs(jobs, epoch)

    async def _settle(self, shard: str, jobs: Sequence[NewJob], epoch: int) -> PutAnswer:
        try:
            return _uncertain(shard, await self._written(shard, jobs, epoch))
        except MeshError as error:
            extra = {"action": "outcome_unknown", "shard": shard, "count": len(jobs)}
            log.warning("cannot tell whether jobs were stored", extra=extra)
            raise OutcomeUnknown(shard) from error

    def _outcome(self, shard: str, result: PutResult | MeshError) -> Outcome:
        if isinstance(result, MeshError):
            return result
        if result.outcome is PutOutcome.CONFLICT:
            return IdempotencyConflict(result.job_id)
        if result.outcome is PutOutcome.HELD:
            return UniqueConflict(result.job_id)
        return Stored(shard, result)


def defect(count: int) -> OutcomeUnknown:
    """What is told of jobs that went wrong in a way nobody thought of: maybe after the write. To be
    called where that was caught.
    """
    correlation_id = uuid4().hex
    extra = {"action": "put_defect", "correlation_id": correlation_id, "count": count}
    log.exception("new jobs went wrong", extra=extra)
    return OutcomeUnknown.by_defect(correlation_id)


def _uncertain(shard: str, answer: PutAnswer) -> PutAnswer:
    """The answer to jobs that were sent again: what this try certainly did not store, the first
    one may have.
    """
    if answer.time is not None or not any(isinstance(r, CERTAIN) for r in answer.results):
        return answer
    unknown = OutcomeUnknown(shard)
    results = [unknown if isinstance(r, CERTAIN) else r for r in answer.results]
    return PutAnswer(results, answer.events)
