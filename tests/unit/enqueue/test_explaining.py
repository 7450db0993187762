"""Why a job is not running: one dominant reason, with the numbers in its words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb

from services.enqueue.domain.explaining import (
    Awaited,
    LimitView,
    PoolView,
    Reason,
    Standing,
    Surroundings,
    explain,
    shard_away,
    span,
)

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DUE = Standing("echo", "SCHEDULED", NOW, NOW - timedelta(seconds=3))
BUSY = Surroundings(workers=2, room=8)
ALONE = Surroundings()


def test_a_blocked_job_names_what_it_waits_for() -> None:
    one, lost = Awaited("j1", "render", "RUNNING"), Awaited("j2")
    found = explain(replace(DUE, state="BLOCKED", waits_for=(one,)), Surroundings())
    assert (found.reason, found.words) == (Reason.BLOCKED, "it waits for job j1 (render, RUNNING)")
    found = explain(replace(DUE, state="BLOCKED", waits_for=(one, lost)), Surroundings())
    assert found.words == "it waits for 2 jobs: j1 (render, RUNNING), j2 (its shard is away)"
    assert found.blockers == ("j1", "j2")


def test_of_many_jobs_that_one_waits_for_some_are_named() -> None:
    many = tuple(Awaited(f"j{n}", "t", "SCHEDULED") for n in range(9))
    found = explain(replace(DUE, state="BLOCKED", waits_for=many), Surroundings())
    assert found.words.startswith("it waits for 9 jobs: j0 (t, SCHEDULED), ")
    assert found.words.endswith(" and 4 more")
    assert len(found.blockers) == 9


def test_a_blocked_job_that_waits_for_nobody_is_being_released() -> None:
    assert "released" in explain(replace(DUE, state="BLOCKED"), Surroundings()).words


def test_the_reasons_are_those_of_the_wire():
    for reason in Reason:
        assert pb.WaitReason.Name(reason) == f"WAIT_REASON_{reason.name}"


CASES = {
    "ended": (
        replace(DUE, state="FAILED", end_time=NOW - timedelta(minutes=5), failure="E: no"),
        BUSY,
        Reason.ENDED,
        "it ended 5 min ago: FAILED: E: no",
    ),
    "running": (
        replace(DUE, state="RUNNING", worker_id="w", attempt=2, start_time=NOW),
        BUSY,
        Reason.RUNNING,
        "attempt 2 has been running on worker w for 0 s",
    ),
    "dispatched": (
        replace(DUE, state="DISPATCHED", worker_id="w"),
        BUSY,
        Reason.RUNNING,
        "handed to worker w",
    ),
    "not due": (
        replace(DUE, due_time=NOW + timedelta(seconds=90)),
        ALONE,
        Reason.NOT_DUE,
        "due in 90 s, at 2026-06-01T12:01:30+00:00",
    ),
    "backoff": (
        replace(DUE, due_time=NOW + timedelta(hours=3), attempt=1, failure="E: no"),
        BUSY,
        Reason.RETRY_BACKOFF,
        "attempt 1 failed (E: no); the next is due in 3 h",
    ),
    "paused": (DUE, replace(BUSY, paused="broken"), Reason.PAUSED, "paused (broken)"),
    "no worker": (DUE, ALONE, Reason.NO_WORKER, "no worker serves echo, and it has no pool"),
    "last ones stop": (DUE, replace(ALONE, draining=1), Reason.NO_WORKER, "are stopping (1)"),
    "pool grows": (
        DUE,
        replace(ALONE, pool=PoolView(2, 0, 1, "3 jobs wait")),
        Reason.POOL_SCALING,
        "has no worker yet and grows to 2 (1 starting): 3 jobs wait",
    ),
    "pool at rest": (DUE, replace(ALONE, pool=PoolView(0, 0, 0, "held")), Reason.NO_WORKER, "held"),
    "queued": (
        replace(DUE, ahead=17, starts_per_second=3.0),
        BUSY,
        Reason.QUEUED,
        "17 due jobs are before it; 2 workers have room for 8 at once; lately 3 a second were"
        " started: about 6 s to go",
    ),
    "next": (DUE, BUSY, Reason.QUEUED, "has been due for 3 s and is the next of its type"),
    "capped": (
        replace(DUE, ahead=10_000, capped=True, missing_shards=("s1",)),
        BUSY,
        Reason.QUEUED,
        "more than 10000 due jobs are before it",
    ),
    "limit of the type": (
        DUE,
        Surroundings(workers=2, room=8, limits=(LimitView(3, 3),)),
        Reason.LIMIT,
        "the limit of type",
    ),
    "limit of the key": (
        DUE,
        Surroundings(workers=2, room=8, limits=(LimitView(3, 3), LimitView(2, 1, of_key=True))),
        Reason.LIMIT,
        "with its concurrency key is reached: 2 of 1 run",
    ),
    "limit with room": (
        DUE,
        Surroundings(workers=2, room=8, limits=(LimitView(2, 3),)),
        Reason.QUEUED,
        "2 workers have room",
    ),
    "etcd away": (DUE, Surroundings(known=False), Reason.QUEUED, "since etcd is away"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_dominant_reason_is_told_with_its_numbers(case):
    job, around, reason, words = CASES[case]
    found = explain(job, around)
    assert found.reason is reason
    assert words in found.words


def test_the_estimate_is_the_line_over_the_pace():
    found = explain(replace(DUE, ahead=9, starts_per_second=2.0), BUSY)
    assert (found.position, found.start) == (9, NOW + timedelta(seconds=5))
    assert explain(replace(DUE, ahead=9), BUSY).start is None
    later = NOW + timedelta(hours=1)
    assert explain(replace(DUE, due_time=later), BUSY).start == later


def test_a_shard_that_is_away_is_the_reason():
    found = shard_away("s1")
    assert found.reason is Reason.SHARD_AWAY
    assert "s1" in found.words


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1, "0 s"),
        (0.42, "0.42 s"),
        (12, "12 s"),
        (300, "5 min"),
        (7200, "2 h"),
        (2e5, "2.31 days"),
    ],
)
def test_spans_are_short(seconds, told):
    assert span(timedelta(seconds=seconds)) == told
