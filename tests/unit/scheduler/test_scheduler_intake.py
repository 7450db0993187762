"""What reaches a scheduler over the bus."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from jobmesh.v1 import bus_pb2

from services.mesh.bus.memory import MemoryBroker, MemoryBus
from services.mesh.bus.subjects import Subjects
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed, JobEvent
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import Cause, JobState
from services.mesh.wire.events import hint
from services.scheduler.adapters.broker import BusBroker, Intake
from services.scheduler.domain.word import Served
from tests.unit.scheduler.scheduler_fakes import job


def _ignore(word: object) -> None: ...


async def test_a_call_that_no_worker_hears_is_no_grab(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    grabs: list[Grab] = []

    async def closing() -> None: ...

    told = (grabs.append, _ignore, _ignore, closing, grabs.append, _ignore)
    intake = Intake(bus, subjects, "s-1", *told)
    await bus.start()
    await intake.start()
    await BusBroker(bus, subjects, "s-1", 1_000_000).call("echo")
    await asyncio.sleep(0)
    await intake.stop()
    assert grabs == []
    assert caplog.messages == []


async def test_what_another_scheduler_has_served_reaches_the_one_it_is_said_to() -> None:
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    heard: dict[str, list[Served]] = {"s-1": [], "s-2": []}

    async def closing() -> None: ...

    await bus.start()
    for name, words in heard.items():
        told = (_ignore, _ignore, _ignore, closing, _ignore, words.append)
        await Intake(bus, subjects, name, *told).start()
    served = Served("echo", "s0", frozenset({7, 2**64 - 1}))
    await BusBroker(bus, subjects, "s-1", 1_000_000).served(["s-2"], served)
    await bus.publish(subjects.served_at("s-1"), b"\xff")
    await asyncio.sleep(0)
    await bus.stop()
    assert heard == {"s-1": [], "s-2": [served]}


async def test_claims_are_told_as_the_transitions_they_are() -> None:
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    heard: list[bytes] = []
    jobs = [replace(job("echo"), fence=number, attempt=number) for number in (1, 2, 3)]
    jobs[1] = replace(jobs[1], namespace="another")
    await bus.start()
    await bus.subscribe(subjects.all_hints, lambda message: heard.append(message.payload))
    await BusBroker(bus, subjects, "s-1", 1_000_000).hint_claims("s0", "w-1", jobs)
    await asyncio.sleep(0)
    await bus.stop()
    assert heard == [hint("s0", [_transition(one, "w-1") for one in jobs])]


def _transition(job: Claimed, worker_id: str) -> JobEvent:
    what = (job.id, job.version, JobState.DISPATCHED, Cause.CLAIMED, job.dispatch_time)
    return JobEvent(
        *what, job.attempt, job.fence, worker_id, None, None, None, job.namespace, job.type
    )


async def test_hints_of_many_long_failures_are_as_small_as_the_broker_wants_them() -> None:
    subjects, bus = Subjects("jm"), MemoryBus(MemoryBroker())
    failure = Failure("ParentFailed", "\u5931" * 600)
    ended = (JobState.FAILED, Cause.PARENT_FAILED, datetime.now(UTC), 0, 0, None, None, failure)
    events = [JobEvent(UUID(int=n), 2, *ended, None, "n", "t", awaited=True) for n in range(1000)]
    told: list[bytes] = []
    ends: list[bytes] = []
    await bus.start()
    await bus.subscribe(subjects.hint("s0"), lambda message: told.append(message.payload))
    await bus.subscribe(subjects.ended("s0"), lambda message: ends.append(message.payload))
    await BusBroker(bus, subjects, "s-1", 900_000).hint("s0", events)
    await asyncio.sleep(0)
    await bus.stop()
    batches = [bus_pb2.EventBatch.FromString(payload) for payload in told]
    assert b"".join(batch.job_ids for batch in batches) == b"".join(e.job_id.bytes for e in events)
    assert max(map(len, told)) <= 900_000
    assert ends == [b""]
