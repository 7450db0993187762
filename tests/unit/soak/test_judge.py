"""The judge of the soak: what it must find, and what it must not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.soak import picture
from tests.soak.judge import Sample, Soaked, fit, quantile

HOUR = 3600
HELD = (1200.0, 1800.0)


def samples(
    memory: Callable[[float], float] = lambda t: 100.0,
    size: Callable[[float], float] = lambda t: 50e6,
    blocks: Callable[[float], float] = lambda t: 40.0,
    files: Callable[[float], float] = lambda t: 30.0,
) -> list[Sample]:
    """An hour, one sample in 15 seconds; ten claims in between."""
    noise = random.Random(3)
    touched, found = 0.0, []
    for number, t in enumerate(range(0, HOUR, 15)):
        touched += 10 * blocks(t)
        claims = {"calls": 10.0 * number, "ms": 4.0 * number, "rows": 0.0, "blocks": touched}
        table = {"table": size(t), "indexes": 0, "dead": 0, "live": 10}
        process = {"mb": memory(t) + noise.gauss(0, 0.2), "fds": files(t), "cpu": t / 10}
        found.append(
            {
                "t": float(t),
                "processes": {"enqueue": process, "etcd": {**process, "mb": float(t)}},
                "shards": {"s0": {"tables": {"jobs": table}, "claims": claims}},
                "claim_buckets": {
                    "0.001": 9.0 * number,
                    "0.01": 10.0 * number,
                    "+Inf": 10.0 * number,
                },
                "etcd_mb": 1.0,
            }
        )
    return found


def complaints(**shapes: Any) -> list[str]:
    return Soaked(samples(**shapes), HELD).complaints({}, 0)


def test_a_flat_run_passes_whatever_servers_that_are_not_ours_do() -> None:
    assert complaints() == []


def test_warming_up_is_no_leak() -> None:
    assert complaints(memory=lambda t: min(100.0, 60 + t / 30)) == []


def test_one_step_of_an_allocator_is_no_leak() -> None:
    assert complaints(memory=lambda t: 100.0 if t < 2400 else 101.0) == []


def test_a_leak_is_found() -> None:
    (found,) = complaints(memory=lambda t: 100.0 + 6 * t / HOUR)
    assert "enqueue grows by 6" in found


def test_files_that_stay_open_are_found() -> None:
    (found,) = complaints(files=lambda t: 30 + t // 60)
    assert "enqueue opens 60 files/h more" in found


def test_a_table_that_keeps_growing_is_found() -> None:
    (found,) = complaints(size=lambda t: 20e6 + 30e6 * t / HOUR)
    assert "s0 grew by" in found


def test_a_table_that_stopped_growing_is_not() -> None:
    assert complaints(size=lambda t: min(50e6, 20e6 + 100e6 * t / HOUR)) == []


def test_claims_that_touch_ever_more_are_found() -> None:
    (found,) = complaints(blocks=lambda t: 40 + t / 50)
    assert "blocks: last third" in found


def test_errors_and_jobs_that_never_ended_fail_a_run() -> None:
    found = Soaked(samples(), HELD).complaints({"batch:UNAVAILABLE": 2}, 3)
    assert found == ["2 x batch:UNAVAILABLE", "3 jobs never ended"]


def test_the_line_through_points() -> None:
    line = fit([(t, 5 + t / 360) for t in range(0, HOUR, 60)])
    assert line.slope == pytest.approx(10)
    assert line.error == pytest.approx(0, abs=1e-6)


def test_quantiles_of_a_histogram() -> None:
    buckets = {"0.001": 50.0, "0.01": 90.0, "+Inf": 100.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.001)
    assert quantile(buckets, 0.7) == pytest.approx(0.0055)
    assert quantile(buckets, 0.99) == pytest.approx(0.01)
    assert quantile({}, 0.5) == 0.0


def test_the_picture_shows_every_service_and_the_held_transaction() -> None:
    svg = picture.drawn(Soaked(samples(), HELD), "an hour & more")
    assert "an hour &amp; more" in svg
    assert ">enqueue</text>" in svg
    assert "#fefcbf" in svg
