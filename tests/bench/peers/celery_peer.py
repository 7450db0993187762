"""Celery on Redis, results stored: a job has ended when its result is there."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from typing import Any

import redis.asyncio
import stamps
from celery import Celery

app = Celery("peer", broker=os.environ.get("PEER_URL"), backend=os.environ.get("PEER_URL"))
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=100,
    task_ignore_result=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(payload: str) -> None:
    stamps.stamp(payload)


def serve(url: str) -> None:
    app.worker_main(["worker", "--loglevel=ERROR", "--concurrency=2", "--without-gossip"])


class Client:
    """Its own calls block: they go through threads."""

    async def open(self, url: str) -> None:
        self._redis: Any = redis.asyncio.from_url(url)
        self._submitted = 0

    async def submit_many(self, payloads: list[str]) -> None:
        self._submitted += len(payloads)
        await asyncio.to_thread(lambda: [noop.delay(payload) for payload in payloads])

    async def submit_one(self, payload: str) -> None:
        self._submitted += 1
        await asyncio.to_thread(noop.delay, payload)

    async def submit_at(self, payload: str, due: datetime) -> None:
        self._submitted += 1
        await asyncio.to_thread(noop.apply_async, (payload,), eta=due)

    async def left(self) -> int:
        ended = 0
        async for _ in self._redis.scan_iter("celery-task-meta-*", count=5000):
            ended += 1
        return self._submitted - ended

    async def log_bytes(self) -> int:
        return int((await self._redis.info("persistence"))["aof_current_size"])

    async def close(self) -> None:
        await self._redis.aclose()
