"""Answers fit a message, however long the failures in them are; what is left out comes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.jobs.model import (
    NO_LABELS,
    NO_PAYLOAD,
    NO_TIMEOUTS,
    JobEvent,
    JobRecord,
    Payload,
    Position,
)
from services.mesh.jobs.recurrence import Interval
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.schedules import Definition, JobTemplate, ScheduleRecord
from services.mesh.jobs.states import Cause, JobState
from services.mesh.rpc.server import MAX_SEND_BYTES
from services.mesh.store.answers import EventPage
from services.orchestrator import convert
from services.orchestrator.app.lookup import EndsFound, Events, Found, Page
from services.orchestrator.app.schedules import SchedulePage
from services.orchestrator.servicer import OrchestratorServicer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG = Failure("E", "m" * 8_192, "t" * 16_384)
SHORT = Failure("E", "m")
PLACE = Position(8, 1)


def events_of(count: int, failure: Failure = LONG) -> list[JobEvent]:
    said = (JobState.FAILED, Cause.FAILED, NOW, 1, 1, "w", None, failure, None, "n", "t")
    return [
        JobEvent(UUID(int=n), 4, *said, position=Position(7, n + 1))  # type: ignore[misc]
        for n in range(count)
    ]


class FakeLookup:
    def __init__(self, events: list[JobEvent]) -> None:
        self._events = events

    async def events(self, cursors: Any) -> Events:
        return Events(self._events, [])

    async def ends(self, keys: Any, namespace: Any) -> EndsFound:
        half = len(self._events) // 2
        return EndsFound({"s0": self._events[:half], "s1": self._events[half:]}, [], [])

    async def page(self, *_: Any, **__: Any) -> Page:
        jobs = [Found("s0", record(event)) for event in self._events]
        return Page(jobs, False, [])


def record(event: JobEvent) -> JobRecord:
    return JobRecord(
        event.job_id,
        "n",
        "t",
        event.state,
        event.version,
        priority=0,
        attempt=1,
        losses=0,
        fence=1,
        worker_id="w",
        due_time=NOW,
        first_due_time=NOW,
        create_time=NOW,
        dispatch_time=NOW,
        start_time=NOW,
        end_time=NOW,
        expire_time=None,
        timeouts=NO_TIMEOUTS,
        retry=None,
        labels=NO_LABELS,
        input=NO_PAYLOAD,
        output=NO_PAYLOAD,
        failure=event.failure,
        idempotency_key=None,
        traceparent=None,
        schedule_id=None,
        nominal_time=None,
        origin_id=None,
    )


def servicer_of(events: list[JobEvent]) -> OrchestratorServicer:
    servicer = OrchestratorServicer.__new__(OrchestratorServicer)
    servicer._lookup = cast(Any, FakeLookup(events))
    return servicer


async def test_events_of_jobs_are_the_first_that_fit() -> None:
    asked = pb.ListEventsRequest()
    answer = await servicer_of(events_of(1000)).ListEvents(asked, cast(Any, None))
    assert 100 < len(answer.events) < 1000
    assert answer.ByteSize() < MAX_SEND_BYTES
    assert [event.job_id for event in answer.events[:3]] == [str(UUID(int=n)) for n in range(3)]
    short = await servicer_of(events_of(5000, SHORT)).ListEvents(asked, cast(Any, None))
    assert len(short.events) == 5000


async def test_ends_are_as_many_as_fit() -> None:
    asked = pb.ListEndsRequest()
    answer = await servicer_of(events_of(1000)).ListEnds(asked, cast(Any, None))
    told = sum(len(batch.versions) for batch in answer.ends)
    assert 100 < told < 1000
    assert answer.ByteSize() < MAX_SEND_BYTES
    short = await servicer_of(events_of(1000, SHORT)).ListEnds(asked, cast(Any, None))
    assert sum(len(batch.versions) for batch in short.ends) == 1000


async def test_a_page_of_jobs_ends_where_it_is_large_enough() -> None:
    asked = pb.OrchestratorServiceListJobsRequest(namespace="n", page_size=1000)
    answer = await servicer_of(events_of(1000)).ListJobs(asked, cast(Any, None))
    assert 100 < len(answer.jobs) < 1000
    assert answer.more
    short = await servicer_of(events_of(1000, SHORT)).ListJobs(asked, cast(Any, None))
    assert (len(short.jobs), short.more) == (1000, False)


def test_a_page_of_a_shards_order_says_where_it_goes_on() -> None:
    page = EventPage(events_of(1000), Position(9, 0), False, False, 12, PLACE)
    answer = convert.event_page_to_proto(page)
    count = len(answer.events)
    assert 100 < count < 1000
    assert answer.more
    assert (answer.next.xid, answer.next.number) == (7, count), "after the last that is told"
    assert answer.lasting == answer.next
    whole = convert.event_page_to_proto(
        EventPage(events_of(9), Position(9, 0), False, False, 12, PLACE)
    )
    assert (len(whole.events), whole.more, whole.next.xid, whole.lasting.xid) == (9, False, 9, 8)


def test_one_that_is_too_large_by_itself_comes_alone() -> None:
    huge = events_of(2, Failure("E", "m" * (convert.MOST_BYTES + 1)))
    answer = convert.event_page_to_proto(EventPage(huge, Position(9, 0), False, False, 12, PLACE))
    assert (len(answer.events), answer.more, answer.next.number) == (1, True, 1)


class FakeSchedules:
    async def page(self, *_: Any) -> SchedulePage:
        large = JobTemplate("t", Payload.inline(b"i" * 1024**2))
        definition = Definition((Interval(timedelta(hours=1)),), large)
        past = (0, 0, 1, NOW, NOW)
        records = [
            ScheduleRecord(UUID(int=n), "n", f"s{n}", definition, False, "", NOW, None, None, *past)
            for n in range(40)
        ]
        return SchedulePage(records, False, [])


async def test_schedules_with_large_inputs_are_listed_in_parts() -> None:
    servicer = OrchestratorServicer.__new__(OrchestratorServicer)
    servicer._schedules = cast(Any, FakeSchedules())
    asked = pb.OrchestratorServiceListSchedulesRequest(namespace="n", page_size=40)
    answer = await servicer.ListSchedules(asked, cast(Any, None))
    assert answer.ByteSize() < MAX_SEND_BYTES
    assert [one.name for one in answer.schedules[:3]] == ["s0", "s1", "s2"]
    assert answer.more, "the next page begins behind the last that fits"
