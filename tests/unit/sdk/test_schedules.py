"""Schedules as users say them: keywords and flags to fields, answers to values and lines."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import grpc
import pytest
from jobmesh import AsyncClient, Retry
from jobmesh.cli import timeline
from jobmesh.cli.schedule_options import timing
from jobmesh.client.timing import apply_timing
from jobmesh.errors import Unavailable
from jobmesh.options import EnqueueOptions
from jobmesh.v1 import schedule_pb2

from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2027, 3, 27, 12, tzinfo=UTC)


def said(**keywords: object) -> tuple[schedule_pb2.Schedule, set[str]]:
    message = schedule_pb2.Schedule()
    return message, set(apply_timing(message, keywords))


def test_every_keyword_is_a_field() -> None:
    message, fields = said(
        every="5m",
        phase=30,
        cron=["0 9 * * *", "@daily"],
        time_zone="Europe/Berlin",
        exclude="* * 25 12 *",
        start=NOON,
        end=NOON + timedelta(days=1),
        max_runs=7,
        jitter="5s",
        overlap="buffer-one",
        catch_up="all",
        catch_up_window="2h",
        dst_gap="run_before",
        dst_overlap="TWICE",
        pause_on_failure=True,
    )
    assert [rule.WhichOneof("rule") for rule in message.recurrences] == ["interval", "cron", "cron"]
    assert message.recurrences[0].interval.phase.seconds == 30
    assert message.recurrences[2].cron.time_zone == "Europe/Berlin"
    assert message.exclusions[0].cron.time_zone == "Europe/Berlin"
    assert message.overlap_policy == schedule_pb2.OVERLAP_POLICY_BUFFER_ONE
    assert message.dst_gap_policy == schedule_pb2.DST_GAP_POLICY_RUN_BEFORE
    assert message.dst_overlap_policy == schedule_pb2.DST_OVERLAP_POLICY_TWICE
    assert message.catch_up_window.seconds == 7200
    assert fields <= set(schedule_pb2.Schedule.DESCRIPTOR.fields_by_name)
    assert len(fields) == 12


def test_a_policy_that_is_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"overlap: 'never' is none of allow_all, skip"):
        said(overlap="never")
    with pytest.raises(ValueError, match="every or cron"):
        said(time_zone="UTC")


async def test_an_update_names_what_it_changes_and_nothing_else(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    await client.schedules.create("n", "echo", every="5m", jitter="5s")
    changed = await client.schedules.update("n", cron="@daily", jitter=None, priority=3)
    (request,) = mesh.calls["UpdateSchedule"]
    assert set(request.update_mask.paths) == {"recurrences", "jitter", "template.priority"}
    assert changed.rules == ("cron @daily",)
    with pytest.raises(ValueError, match="cannot change delay"):
        await client.schedules.update("n", delay=5)


async def test_new_rules_of_a_schedule_stay_in_its_zone(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    berlin = "Europe/Berlin"
    await client.schedules.create("n", "echo", cron="30 1 * * *", time_zone=berlin)
    changed = await client.schedules.update("n", cron="0 2 * * *")
    assert changed.rules == ("cron 0 2 * * * Europe/Berlin",)
    await client.schedules.update("n", exclude="0 2 25 12 *")
    assert mesh.schedules["n"].exclusions[0].cron.time_zone == berlin
    assert mesh.calls["UpdateSchedule"][-1].update_mask.paths == ["exclusions"]
    moved = await client.schedules.update("n", cron="0 2 * * *", time_zone="Asia/Tokyo")
    assert moved.rules == ("cron 0 2 * * * Asia/Tokyo",)
    with pytest.raises(ValueError, match=r"several time zones \(Asia/Tokyo, Europe/Berlin\)"):
        await client.schedules.update("n", cron="0 4 * * *")


async def test_a_zone_without_rules_is_the_new_zone_of_those_there_are(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    rules = {"every": "6h", "cron": ["30 1 * * *", "0 9 * * *"], "exclude": "0 9 25 12 *"}
    await client.schedules.create("n", "echo", **rules)  # type: ignore[arg-type]
    stored = mesh.schedules["n"]
    stored.etag = "now"
    moved = await client.schedules.update("n", time_zone="Europe/Berlin", max_runs=3)
    said = ["cron 30 1 * * * Europe/Berlin", "cron 0 9 * * * Europe/Berlin"]
    assert moved.rules == ("every 21600s", *said)
    assert mesh.schedules["n"].exclusions[0].cron.time_zone == "Europe/Berlin"
    asked = mesh.calls["UpdateSchedule"][-1]
    assert set(asked.update_mask.paths) == {"recurrences", "exclusions", "max_runs"}
    assert asked.schedule.etag == "now"
    await client.schedules.update("n", exclude="0 9 1 1 *", time_zone="Asia/Tokyo")
    zones = {rule.cron.time_zone for rule in (*stored.recurrences[1:], *stored.exclusions)}
    assert (zones, len(stored.exclusions)) == ({"Asia/Tokyo"}, 1)


async def test_a_zone_alone_is_refused_where_no_rule_has_one(client: AsyncClient) -> None:
    await client.schedules.create("n", "echo", every="5m")
    with pytest.raises(ValueError, match="no cron rules that a time zone could be of"):
        await client.schedules.update("n", time_zone="Europe/Berlin")


OF_THE_JOBS = {
    "priority": 3,
    "labels": {"a": "b"},
    "retry": Retry.fixed("5s", attempts=3),
    "timeout": "1m",
    "start_timeout": "2m",
    "progress_timeout": "3m",
    "total_timeout": "4m",
    "concurrency_key": "tenant-1",
}


async def test_all_that_is_said_of_a_job_is_said_of_the_jobs_of_a_schedule(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    """But for what is about one job only: when it is due, and what ties it to others."""
    about_one = {"at", "delay", "expire", "idempotency_key", "after", "unique"}
    same_thing = {"retries", "content_type"}
    assert OF_THE_JOBS.keys() == EnqueueOptions.__annotations__.keys() - about_one - same_thing
    await client.schedules.create("made", "echo", {"n": 1}, every="5m", **OF_THE_JOBS)  # type: ignore[misc]
    await client.schedules.create("changed", "echo", every="5m")
    await client.schedules.update("changed", input={"n": 1}, **OF_THE_JOBS)  # type: ignore[misc]
    made, changed = mesh.schedules["made"].template, mesh.schedules["changed"].template
    assert made == changed
    assert made.concurrency_key == "tenant-1"
    assert [made.timeouts.start.seconds, made.timeouts.total.seconds] == [120, 240]
    assert (made.input.data, made.retry_policy.max_attempts) == (b'{"n":1}', 3)


async def test_what_the_jobs_were_bound_to_is_taken_back(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    await client.schedules.create("n", "echo", every="5m", **OF_THE_JOBS)  # type: ignore[misc]
    await client.schedules.update("n", start_timeout=None, concurrency_key="")
    template = mesh.schedules["n"].template
    assert not template.timeouts.HasField("start")
    assert template.timeouts.HasField("total")
    assert not template.concurrency_key


async def test_a_schedule_has_no_idempotency_key(client: AsyncClient) -> None:
    with pytest.raises(ValueError, match="its name"):
        await client.schedules.create("n", "echo", every="5m", idempotency_key="k")


async def test_a_trigger_is_never_sent_twice(client: AsyncClient, mesh: MemoryMesh) -> None:
    await client.schedules.create("n", "echo", every="5m")
    mesh.faults["TriggerSchedule"] = [Fault(grpc.StatusCode.UNAVAILABLE, after=True)]
    with pytest.raises(Unavailable):
        await client.schedules.trigger("n")
    assert len(mesh.calls["TriggerSchedule"]) == 1
    assert (await client.schedules.trigger("n")).schedule == "n"


async def test_a_preview_and_a_backfill_read_back(client: AsyncClient, mesh: MemoryMesh) -> None:
    await client.schedules.create("n", "echo", every="5m")
    coming = await client.schedules.preview(cron="30 2 * * *", time_zone="Europe/Berlin", limit=3)
    assert (len(coming.times), coming.more) == (3, True)
    assert coming.clock_changes[0].shift == timedelta(hours=1)
    assert coming.clock_changes[0].times == coming.times[1:2]
    done = await client.schedules.backfill("n", NOON - timedelta(days=1), NOON, allow_many=True)
    assert (done.count, done.waiting, done.left_out) == (24, 2, 1)
    assert mesh.calls["BackfillSchedule"][0].allow_many


# --- the command line


def test_flags_that_were_not_given_say_nothing() -> None:
    assert timing({"every": None, "cron": [], "overlap": "skip"}) == {"overlap": "skip"}
    assert timing({"end": "none", "jitter": "none"}) == {"end": None, "jitter": None}
    with pytest.raises(ValueError, match="--time-zone goes with"):
        timing({"every": "5m", "time_zone": "UTC"})
    with pytest.raises(ValueError, match="--time-zone goes with"):
        timing({"every": "5m", "time_zone": "UTC"}, has_rules=True)
    with pytest.raises(ValueError, match="--time-zone goes with"):
        timing({"time_zone": "UTC"})


async def test_a_schedule_is_moved_to_another_zone(run: Run) -> None:
    await run("schedule", "create", "nightly", "echo", "--cron", "30 1 * * *")
    moved = await run("schedule", "update", "nightly", "--tz", "Europe/Berlin")
    assert "30 1 * * * Europe/Berlin" in moved.out


def test_a_strip_shows_where_the_runs_lie() -> None:
    times = [NOON + n * timedelta(hours=6) for n in (1, 2, 3, 4)]
    strip = timeline.strip(times, NOON, width=8)
    assert strip == "now ├──●─●─●●┤ +1d 00h"
    assert timeline.strip([], NOON) == ""
    assert "12┤" not in timeline.strip([NOON] * 12, NOON, width=8)


def test_times_are_shown_here_and_there() -> None:
    shown = timeline.both(NOON, BERLIN)
    here = NOON.astimezone()
    assert f"{here:%H:%M:%S}" in shown
    assert ("13:00:00 CET" in shown) or here.utcoffset() == timedelta(hours=1)


async def test_schedules_are_made_changed_and_shown(run: Run, mesh: MemoryMesh) -> None:
    flags = ("--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--overlap", "skip", "-l", "a=b")
    made = await run("schedule", "create", "nightly", "echo", "-i", "{}", *flags)
    assert made.code == 0
    assert "cron 30 2 * * * Europe/Berlin" in made.out
    assert dict(mesh.schedules["nightly"].template.labels) == {"a": "b"}
    changed = await run("schedule", "update", "nightly", "--every", "1h", "--max-runs", "5")
    assert "every 3600s" in changed.out
    shown = await run("schedule", "get", "nightly")
    assert re.search(r"^next +\w+ 20\d\d-", shown.out, re.MULTILINE)
    assert re.search(r"^overlap +skip$", shown.out, re.MULTILINE)
    assert shown.out.splitlines()[-1].endswith("h") or "├" in shown.out
    assert (await run("schedule", "trigger", "nightly")).out == "made\n"


async def test_flags_about_the_jobs_are_those_of_submit(run: Run, mesh: MemoryMesh) -> None:
    flags = ("--retries", "2", "--backoff", "fixed", "--retry-delay", "5s", "--no-retry-on", "2")
    flags += ("--timeout", "1m", "--start-timeout", "2m", "--progress-timeout", "3m", "-p", "3")
    flags += ("--total-timeout", "4m", "--concurrency-key", "tenant-1", "-l", "a=b", "-i", "[1]")
    await run("submit", "echo", "--every", "1h", "--name", "submitted", *flags)
    await run("schedule", "create", "made", "echo", "--every", "1h", *flags)
    await run("schedule", "create", "changed", "echo", "--every", "1h")
    await run("schedule", "update", "changed", *flags)
    templates = [mesh.schedules[name].template for name in ("submitted", "made", "changed")]
    assert templates[0] == templates[1] == templates[2]
    assert templates[0].concurrency_key == "tenant-1"
    assert templates[0].retry_policy.initial_delay.seconds == 5
    shown = await run("schedule", "get", "made")
    assert re.search(r"^concurrency key +tenant-1$", shown.out, re.MULTILINE)
    await run("schedule", "update", "changed", "--total-timeout", "none", "--retries", "0")
    assert not mesh.schedules["changed"].template.timeouts.HasField("total")
    assert mesh.schedules["changed"].template.retry_policy.max_attempts == 1


async def test_flags_about_one_job_are_refused_for_a_schedule(run: Run) -> None:
    for flag in ("--key", "--unique", "--after", "--expire"):
        refused = await run("submit", "echo", "--every", "1h", flag, "x")
        assert (refused.code, "of one job" in refused.err) == (2, True)
    lone = await run("schedule", "create", "n", "echo", "--every", "1h", "--backoff", "fixed")
    assert (lone.code, "give --retries" in lone.err) == (2, True)


async def test_a_preview_marks_the_nights_and_a_backfill_counts(run: Run) -> None:
    rule = ("--cron", "30 2 * * *", "--tz", "Europe/Berlin")
    coming = await run("schedule", "preview", *rule, "--limit", "3")
    header, first, second, _ = coming.out.splitlines()
    assert header.split() == ["#", "LOCAL", "TIME", "SCHEDULE", "TIME", "IN", "NOTE"]
    assert "Sat 2027-03-27 02:30:00 CET" in first
    assert "clocks change: runs at 03:00" in second
    assert "├" in coming.err
    machine = await run("schedule", "preview", *rule, "--limit", "3", "--json")
    assert len(machine.lines[0]["times"]) == 3
    await run("schedule", "create", "n", "echo", "--every", "1h", "--overlap", "skip")
    done = await run("schedule", "backfill", "n", "--from", "2026-01-01T00:00+00:00")
    assert done.out == "24 made, 2 waiting for their turn, 1 left out\n"
    assert "left out by the overlap policy, skip:" in done.err
    assert "jobmesh schedule update n --overlap buffer-all" in done.err


async def test_a_schedule_without_a_rule_is_a_usage_error(run: Run) -> None:
    ran = await run("schedule", "create", "n", "echo")
    assert (ran.code, ran.out) == (2, "")
    assert "every or cron" in ran.err
