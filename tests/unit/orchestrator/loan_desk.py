"""An Orchestrator's loans with nobody around: what is said to whom is noted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from services.mesh.jobs.model import NewJob
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutAnswer, PutOutcome, PutResult
from services.orchestrator.app.loans import Loans
from services.orchestrator.domain.lent import Part
from tests.unit.orchestrator.loan_fakes import FakeHands, loans_over

LONG = 60.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Shard:
    """Stands for all of them; takes back what is swept."""

    def store(self, _: str) -> Shard:
        return self

    async def sweep(self, lost: Any) -> None:
        pass


class Desk:
    def __init__(self) -> None:
        self.hands = FakeHands()
        shards: Any = Shard()
        self.loans: Loans = loans_over(shards, self.hands)

    async def said(self) -> None:
        """Let what is to be said be said."""
        for _ in range(3):
            await asyncio.sleep(0)


def jobs(count: int = 1, **fields: Any) -> list[NewJob]:
    return [NewJob(uuid4(), "n", "t", **fields) for _ in range(count)]


async def deliver(desk: Desk, count: int, part: Part | None = None) -> int:
    """Send so many jobs to the worker; how many left."""
    news, sent = jobs(count), len(desk.hands.sent)
    part = part or desk.loans.take(news)
    assert part is not None
    made = PutOutcome.CREATED, news[0].id, JobState.DISPATCHED, 2, NOW, NOW, True, True
    await desk.loans.deliver(part, "s0", news, PutAnswer([PutResult(*made)] * count, []))
    return sum(len(batch) for _, batch in desk.hands.sent[sent:])


async def waiting(desk: Desk, count: int) -> asyncio.Task[Part | None]:
    task = asyncio.create_task(desk.loans.room(jobs(count)))
    await desk.said()
    return task
