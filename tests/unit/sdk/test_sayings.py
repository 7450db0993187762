"""What handlers say: bounds that hold in the handler itself, and how it is shown."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from jobmesh import Context, OutputError, RetryAfter, Snooze, job
from jobmesh.cli.logs import _print, is_job_id
from jobmesh.cli.sayings import progress_bar, progress_words
from jobmesh.cli.screen import Screen
from jobmesh.model import LogLine, Progress
from jobmesh.testing import make_context, run_job
from jobmesh.v1 import enqueue_service_pb2 as pb


@pytest.mark.parametrize(
    ("done", "total", "message"),
    [
        (float("nan"), 1, ""),
        (1, float("inf"), ""),
        (-1, 0, ""),
        (10**400, 0, ""),
        (True, 0, ""),
        ("half", 0, ""),
        (1, 2, "x" * 1001),
        (1, 2, None),
    ],
)
def test_progress_that_makes_no_sense_is_the_handlers_error(
    done: Any, total: Any, message: Any
) -> None:
    said: list[object] = []
    context = make_context(on_progress=lambda *what: said.append(what))
    with pytest.raises((ValueError, TypeError)):
        context.progress(done, total, message)
    assert said == []


def test_percent_is_progress_of_a_hundred() -> None:
    said: list[object] = []
    make_context(on_progress=lambda *what: said.append(what)).percent(40, "so far")
    assert said == [(40, 100, "so far")]


@pytest.mark.parametrize("value", [b"x" * 65_537, "x" * 65_535, ["x"] * 20_000])
def test_a_checkpoint_above_the_bound_is_refused_with_its_size(value: Any) -> None:
    with pytest.raises(ValueError, match="at most 65536"):
        make_context().checkpoint(value)


def test_a_checkpoint_that_is_no_json_is_refused() -> None:
    with pytest.raises(OutputError):
        make_context().checkpoint(object())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e9])
def test_an_extension_is_positive_and_bounded(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        make_context().extend(seconds)


@pytest.mark.parametrize("delay", [-0.1, float("nan"), float("inf"), timedelta(days=31)])
def test_a_snooze_is_bounded(delay: Any) -> None:
    with pytest.raises(ValueError, match="delay"):
        Snooze(delay)


def test_a_wish_to_be_retried_is_a_number_of_seconds() -> None:
    assert RetryAfter(timedelta(minutes=2), "busy").seconds == 120
    with pytest.raises(ValueError, match="soon"):
        RetryAfter("soon", "busy")  # type: ignore[arg-type]


@job("resumes")
async def resumes(ctx: Context) -> Any:
    await ctx.checkpoint({"page": (ctx.last_checkpoint or {"page": 0})["page"] + 1})
    if ctx.attempt == 1:
        return Snooze(timedelta(seconds=2))
    return ctx.last_checkpoint


def test_a_handler_that_goes_on_is_tested_without_servers() -> None:
    stored: list[tuple[bytes, str]] = []

    def keep(data: bytes, content_type: str) -> None:
        stored.append((data, content_type))

    with pytest.raises(Snooze) as snoozed:
        run_job(resumes, on_checkpoint=keep)
    assert snoozed.value.seconds == 2
    assert stored == [(b'{"page":1}', "application/json")]
    assert run_job(resumes, attempt=2, last_checkpoint={"page": 1}) == {"page": 1}


def test_what_a_checkpoint_returns_can_be_awaited_anywhere() -> None:
    async def stored() -> None:
        await make_context().checkpoint(b"bytes")

    asyncio.run(stored())


def test_progress_is_shown_with_a_bar_where_the_total_is_known() -> None:
    assert progress_words(Progress(2, 5, "page 2")) == "40 % (2 of 5) page 2"
    assert progress_words(Progress(7, 0, "")) == "7"
    assert progress_words(Progress(2e8, 2e8, "")) == "100 % (200,000,000 of 200,000,000)"
    assert progress_words(Progress(7.72e-07, 60, "")) == "0 % (0 of 60)"
    assert progress_words(Progress(12.5, 0, "")) == "12.5"
    assert progress_words(Progress(40, 100, "")) == "40 %"
    assert progress_bar(Progress(1, 2, "")) == "━" * 10 + "╌" * 10 + " 50 % (1 of 2)"
    assert progress_bar(Progress(9, 3, "")).endswith("100 % (9 of 3)")


def test_a_jobs_id_is_told_from_the_name_of_a_service() -> None:
    assert is_job_id("0197a7b0-0000-7000-8000-000000000000")
    assert not any(map(is_job_id, ("", "scheduler", "0197a7b000007000800000000000")))


def test_lines_of_a_log_have_the_time_of_the_clocks_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    time_said = datetime(2026, 5, 1, 12, tzinfo=UTC)
    line = LogLine(1, time_said, "hello", 1, 1, message=pb.LogLine())
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        _print(Screen(), line, first=False)
    time.tzset()
    assert capsys.readouterr().out == "21:00:00.000  hello\n"
