"""Schedules through Enqueue and Orchestrator: what callers can say, and what they are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, schedule_pb2

from services.mesh.errors import (
    EtagMismatch,
    InvalidField,
    ScheduleExists,
    ScheduleNotFound,
    UnknownType,
)
from tests.integration import test_enqueue

desk = test_enqueue.desk

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def cron(expression: str, time_zone: str = "") -> dict:
    return {"cron": {"expression": expression, "time_zone": time_zone}}


def every(seconds: int) -> dict:
    return {"interval": {"every": {"seconds": seconds}}}


def schedule(**fields) -> schedule_pb2.Schedule:
    given = {"name": "nightly", "template": {"type": "echo"}, "recurrences": [cron("30 2 * * *")]}
    return schedule_pb2.Schedule(**(given | fields))


async def create(desk, **fields) -> schedule_pb2.Schedule:
    request = pb.CreateScheduleRequest(schedule=schedule(**fields))
    return (await desk.stub.CreateSchedule(request)).schedule


async def update(desk, mask: list[str], allow_many: bool = False, **fields):
    request = pb.UpdateScheduleRequest(
        schedule=schedule_pb2.Schedule(**({"name": "nightly"} | fields)),
        update_mask={"paths": mask},
        allow_many=allow_many,
    )
    return (await desk.stub.UpdateSchedule(request)).schedule


def at(*parts: int) -> dict:
    return {"seconds": int(datetime(*parts, tzinfo=UTC).timestamp())}


async def jobs(desk) -> list[job_pb2.Job]:
    return list((await desk.stub.ListJobs(pb.ListJobsRequest(page_size=1000))).jobs)


async def test_a_schedule_with_everything_reads_back_as_it_was_said(desk):
    made = await create(
        desk,
        recurrences=[cron("30 2 * * MON-FRI", "Europe/Berlin"), every(3600)],
        exclusions=[cron("* * 25 12 *", "Europe/Berlin")],
        jitter={"seconds": 5},
        max_runs=7,
        overlap_policy="OVERLAP_POLICY_BUFFER_ONE",
        catch_up_policy="CATCH_UP_POLICY_ALL",
        catch_up_window={"seconds": 600},
        dst_gap_policy="DST_GAP_POLICY_SKIP",
        dst_overlap_policy="DST_OVERLAP_POLICY_TWICE",
        pause_on_failure=True,
    )
    again = await desk.stub.GetSchedule(pb.GetScheduleRequest(name="nightly"))
    assert again.schedule == made
    assert made.recurrences[0].cron.time_zone == "Europe/Berlin"
    assert made.exclusions[0].cron.expression == "* * 25 12 *"
    assert made.overlap_policy == schedule_pb2.OVERLAP_POLICY_BUFFER_ONE
    assert made.dst_gap_policy == schedule_pb2.DST_GAP_POLICY_SKIP
    assert made.dst_overlap_policy == schedule_pb2.DST_OVERLAP_POLICY_TWICE
    assert made.pause_on_failure


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"recurrences": [cron("0 0 30 2 *")]}, "recurrences[0].cron.expression", "never fires"),
        ({"recurrences": [cron("61 * * * *")]}, "recurrences[0].cron.expression", "bad minute"),
        ({"recurrences": [every(60), cron("@reboot")]}, "recurrences[1].cron.expression", "alias"),
        (
            {"recurrences": [cron("@daily", "Europe/Atlantis")]},
            "recurrences[0].cron.time_zone",
            "no time zone",
        ),
        (
            {"recurrences": [{"interval": {"every": {"nanos": 5}}}]},
            "recurrences[0].interval.every",
            "1s",
        ),
        ({"exclusions": [cron("nonsense")]}, "exclusions[0].cron.expression", "five fields"),
        ({"exclusions": [cron("* 2 * * *")]}, "exclusions", "leave no time"),
        ({"end_time": at(2020, 1, 1)}, "end_time", "after now"),
        (
            {"template": {"type": "echo", "expire_time": at(2090, 1, 1)}},
            "template.expire_time",
            "timeouts.start",
        ),
        (
            {"start_time": at(2090, 1, 2), "end_time": at(2090, 1, 1)},
            "end_time",
            "after start_time",
        ),
        ({"end_time": at(9999, 1, 1)}, "end_time", "2200"),
        (
            {"start_time": at(2090, 1, 1, 3), "end_time": at(2090, 1, 1, 4)},
            "recurrences",
            "never fire",
        ),
    ],
)
async def test_a_definition_that_cannot_be_meant_is_refused_by_field(desk, fields, field, reason):
    with pytest.raises(InvalidField, match=reason) as error:
        await create(desk, **fields)
    assert [violation.field for violation in error.value.violations] == [f"schedule.{field}"]
    with pytest.raises(ScheduleNotFound):
        await desk.stub.GetSchedule(pb.GetScheduleRequest(name="nightly"))


# --- preview


async def preview(desk, **fields) -> pb.PreviewScheduleResponse:
    return await desk.stub.PreviewSchedule(pb.PreviewScheduleRequest(**fields))


def local(response: pb.PreviewScheduleResponse) -> list[str]:
    return [time.ToDatetime().strftime("%m-%d %H:%M") for time in response.times]


async def test_a_preview_of_a_proposal_marks_the_nights_the_clocks_change(desk):
    found = await preview(
        desk,
        schedule={"recurrences": [cron("30 2 * * *", "Europe/Berlin")]},
        limit=3,
        **{"from": at(2027, 3, 27)},
    )
    assert local(found) == ["03-27 01:30", "03-28 01:00", "03-29 00:30"]
    (night,) = found.clock_changes
    assert (night.time_zone, night.shift.seconds) == ("Europe/Berlin", 3600)
    assert list(night.times) == [found.times[1]]
    assert night.effect == "02:30 left out by the clocks: runs at 03:00"
    assert found.more


async def test_a_preview_of_a_schedule_by_name_keeps_its_bounds(desk):
    await create(desk, recurrences=[cron("@hourly")], max_runs=3, start_time=at(2090, 1, 1))
    found = await preview(desk, schedule={"name": "nightly"}, **{"from": at(2089, 12, 31)})
    assert local(found) == ["01-01 00:00", "01-01 01:00", "01-01 02:00"]
    assert not found.more


async def test_five_years_of_a_schedule_are_previewed_and_no_more(desk):
    rules = {"recurrences": [cron("0 12 * * *", "America/New_York")]}
    found = await preview(desk, schedule=rules, limit=10000, **{"from": at(2026, 1, 1)})
    assert 5 * 365 <= len(found.times) <= 5 * 366
    assert len(found.clock_changes) == 10
    assert {night.effect for night in found.clock_changes} == {"no time of it is affected"}
    span = {"from": at(2026, 1, 1), "until": at(2031, 6, 1)}
    with pytest.raises(InvalidField, match="five years"):
        await preview(desk, schedule=rules, **span)
    with pytest.raises(InvalidField, match="never fires"):
        await preview(desk, schedule={"recurrences": [cron("0 0 31 2 *")]})
    with pytest.raises(ScheduleNotFound):
        await preview(desk, schedule={"name": "nobody"})
    with pytest.raises(InvalidField, match="name, or recurrences"):
        await preview(desk)


# --- trigger and backfill


async def test_a_trigger_returns_the_job_it_made(desk):
    await create(desk)
    answer = await desk.stub.TriggerSchedule(pb.TriggerScheduleRequest(name="nightly"))
    job = await desk.get(answer.job.id)
    assert (job.schedule, job.spec.type) == ("nightly", "echo")
    assert job.state == job_pb2.JOB_STATE_SCHEDULED
    with pytest.raises(ScheduleNotFound):
        await desk.stub.TriggerSchedule(pb.TriggerScheduleRequest(name="nobody"))


async def backfill(desk, first: dict, until: dict, allow_many: bool = False):
    span = {"from": first, "until": until}
    request = pb.BackfillScheduleRequest(name="nightly", allow_many=allow_many, **span)
    return await desk.stub.BackfillSchedule(request)


async def test_a_backfill_makes_each_past_run_once(desk):
    await create(desk, recurrences=[cron("0 * * * *")])
    first = await backfill(desk, at(2026, 1, 1), at(2026, 1, 2))
    again = await backfill(desk, at(2026, 1, 1), at(2026, 1, 2, 1))
    assert (first.count, again.count) == (24, 1)
    nominal = [job.nominal_time.ToDatetime() for job in await jobs(desk)]
    assert len(set(nominal)) == len(nominal) == 25


async def test_a_backfill_of_thousands_must_be_meant(desk):
    await create(desk, recurrences=[cron("* * * * *")])
    with pytest.raises(InvalidField, match="allow_many"):
        await backfill(desk, at(2026, 1, 1), at(2026, 1, 2))
    assert await jobs(desk) == []
    assert (await backfill(desk, at(2026, 1, 1), at(2026, 1, 2), allow_many=True)).count == 1440


async def test_a_backfill_reaches_into_the_past_only(desk):
    await create(desk)
    with pytest.raises(InvalidField, match="after now"):
        await backfill(desk, at(2026, 1, 1), at(2090, 1, 1))
    with pytest.raises(InvalidField, match="after from"):
        await backfill(desk, at(2026, 1, 2), at(2026, 1, 1))


# --- edits


async def test_an_update_takes_the_fields_of_its_mask_and_no_other(desk):
    made = await create(desk, jitter={"seconds": 5}, max_runs=9)
    changed = await update(
        desk,
        ["recurrences", "jitter", "template.priority"],
        recurrences=[cron("0 4 * * *", "Asia/Tokyo")],
        template={"priority": 3, "type": "ignored"},
        max_runs=1,
    )
    assert changed.recurrences[0].cron.time_zone == "Asia/Tokyo"
    assert changed.next_time.ToDatetime().hour == 19
    assert not changed.HasField("jitter")
    assert (changed.template.type, changed.template.priority) == ("echo", 3)
    assert (changed.max_runs, changed.create_time) == (9, made.create_time)
    assert changed.etag != made.etag


async def test_an_update_takes_back_the_last_bound_of_the_jobs(desk):
    bounds = {"start": {"seconds": 60}, "total": {"seconds": 90}}
    made = await create(desk, template={"type": "echo", "timeouts": bounds, "concurrency_key": "k"})
    assert made.template.timeouts.start.seconds == 60
    less = await update(desk, ["template.timeouts.start"], template={"type": "any"})
    assert less.template.timeouts == job_pb2.Timeouts(total={"seconds": 90})
    mask = ["template.timeouts.total", "template.concurrency_key"]
    none = await update(desk, mask, template={"type": "any"})
    assert none.template == job_pb2.JobSpec(type="echo")


async def test_a_job_of_a_schedule_has_all_that_its_template_says(desk):
    template = {
        "type": "echo",
        "input": {"data": b"1", "content_type": "application/json"},
        "priority": 3,
        "labels": {"a": "b"},
        "retry_policy": {"backoff": "BACKOFF_FIXED", "max_attempts": 3},
        "timeouts": {name: {"seconds": 60} for name in ("run", "start", "progress", "total")},
        "concurrency_key": "tenant-1",
    }
    about_one = {"schedule_time", "delay", "expire_time"}
    about_one |= {"dependencies", "unique_key", "unique_policy"}
    assert template.keys() == set(job_pb2.JobSpec.DESCRIPTOR.fields_by_name) - about_one
    made = await create(desk, template=template)
    job = (await desk.stub.TriggerSchedule(pb.TriggerScheduleRequest(name="nightly"))).job
    found = await desk.stub.GetJob(pb.GetJobRequest(job_id=job.id, view=job_pb2.JOB_VIEW_FULL))
    kept = found.job.spec
    assert kept.expire_time.seconds == found.job.due_time.seconds + 60
    for field in ("schedule_time", "expire_time"):
        kept.ClearField(field)
    assert kept == made.template


async def test_an_update_with_an_old_etag_is_refused(desk):
    made = await create(desk)
    await update(desk, ["max_runs"], max_runs=5, etag=made.etag)
    with pytest.raises(EtagMismatch):
        await update(desk, ["max_runs"], max_runs=6, etag=made.etag)
    assert (await update(desk, ["pause_on_failure"], pause_on_failure=True)).max_runs == 5


async def test_an_update_that_cannot_be_meant_is_refused_and_changes_nothing(desk):
    made = await create(desk)
    for mask, fields, words in (
        ([], {}, "name what to change"),
        (["paused"], {"paused": True}, "cannot change 'paused'"),
        (["colour"], {}, "cannot change 'colour'"),
        (["recurrences"], {}, "recurrences"),
        (["recurrences"], {"recurrences": [cron("0 0 30 2 *")]}, "never fires"),
        (["end_time"], {"end_time": at(2020, 1, 1)}, "after now"),
        (["jitter"], {"jitter": {"seconds": -1}}, "jitter"),
    ):
        with pytest.raises(InvalidField, match=words):
            await update(desk, mask, **fields)
    with pytest.raises(UnknownType):
        await update(desk, ["template"], template={"type": "nobody"})
    with pytest.raises(ScheduleNotFound):
        await update(desk, ["max_runs"], name="nobody", max_runs=1)
    after = await desk.stub.GetSchedule(pb.GetScheduleRequest(name="nightly"))
    assert after.schedule == made


async def test_an_edit_that_makes_many_jobs_at_once_must_be_meant(desk, shard_dsns):
    await create(desk, recurrences=[cron("@hourly")])
    for dsn in shard_dsns:  # nobody fires here: it has been due for an hour
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE schedules SET next_time = next_time - interval '2 hours'")
    fields = {"recurrences": [every(1)], "catch_up_policy": "CATCH_UP_POLICY_ALL"}
    with pytest.raises(InvalidField, match="allow_many"):
        await update(desk, list(fields), **fields)
    assert (await update(desk, list(fields), allow_many=True, **fields)).next_time.seconds


async def test_a_schedule_with_a_large_input_created_twice_is_the_same_schedule(desk):
    large = {"data": b"x" * 20_000, "content_type": "application/octet-stream"}
    first = await create(desk, template={"type": "echo", "input": large})
    again = await create(desk, template={"type": "echo", "input": large})
    assert again == first
    with pytest.raises(ScheduleExists):
        await create(desk, template={"type": "echo", "input": {**large, "data": b"y" * 20_000}})
