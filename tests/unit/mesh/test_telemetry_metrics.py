from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.mesh.runtime import Readiness
from services.mesh.runtime.lag import LagWatch
from services.mesh.telemetry.http import MetricsEndpoint
from services.mesh.telemetry.metrics import Metrics


def test_metrics_carry_the_prefix_and_are_made_once() -> None:
    metrics = Metrics("enqueue", "e-1")
    made = metrics.counter("jobs_enqueued", "Jobs taken.", ("type",))
    assert metrics.counter("jobs_enqueued", "Jobs taken.", ("type",)) is made
    made.labels("render").inc(2)
    assert metrics.value("jobmesh_jobs_enqueued_total", {"type": "render"}) == 2
    assert b'jobmesh_build_info{instance="e-1"' in metrics.render()


def test_processes_do_not_share_metrics() -> None:
    one, other = Metrics(), Metrics()
    one.gauge("backlog_jobs", "Due.").set(5)
    assert other.value("jobmesh_backlog_jobs") is None


class Site:
    """A metrics endpoint with the parts around it, and a browser to look at it."""

    def __init__(self) -> None:
        self.metrics, self.readiness = Metrics("enqueue"), Readiness()
        self.endpoint = MetricsEndpoint(
            "127.0.0.1:0",
            self.metrics,
            alive=lambda: self.readiness.alive,
            missing=self.readiness.missing,
        )

    async def send(self, request: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.endpoint.port)
        writer.write(request)
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.partition("\r\n\r\n")
        return (int(head.split()[1]) if head else 0), body

    async def get(self, path: str) -> tuple[int, str]:
        return await self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    await made.endpoint.start()
    yield made
    await made.endpoint.stop()
    await made.endpoint.stop()


async def test_metrics_are_served_over_http(site: Site) -> None:
    site.metrics.gauge("backlog_jobs", "Due.").set(5)
    status, body = await site.get("/metrics")
    assert status == 200
    assert "jobmesh_backlog_jobs 5.0" in body


async def test_process_is_alive_over_http_until_it_drains(site: Site) -> None:
    assert await site.get("/healthz") == (200, "alive\n")
    site.readiness.drain()
    assert await site.get("/healthz") == (503, "draining\n")


async def test_readiness_over_http_names_what_is_missing(site: Site) -> None:
    nats = site.readiness.require("nats")
    assert await site.get("/readyz") == (
        503,
        '{"ready": false, "missing": {"nats": "not reached yet"}}\n',
    )
    nats.up()
    status, _ = await site.get("/readyz?verbose=1")
    assert status == 200


async def test_anything_else_over_http_is_refused(site: Site) -> None:
    assert (await site.get("/etc/passwd"))[0] == 404
    assert (await site.send(b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405
    assert (await site.send(b"x" * 20_000))[0] == 0


async def test_lag_watch_measures_how_late_the_loop_is() -> None:
    metrics = Metrics()
    watch = LagWatch(metrics, period=0.001)
    await watch.start()
    await watch.taken.reached(2)
    assert metrics.value("jobmesh_event_loop_lag_seconds_count") == watch.taken.count
    await watch.stop()
    await watch.stop()
