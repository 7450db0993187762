"""Dramatiq on Redis: a message is gone from its queue when it was acknowledged."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from typing import Any

import dramatiq
import redis.asyncio
import stamps
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ.get("PEER_URL", "redis://127.0.0.1"))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop", queue_name="default")
def noop(payload: str) -> None:
    stamps.stamp(payload)


def serve(url: str) -> None:
    # Its own command: one process, as many threads as it takes by default.
    command = [sys.executable, "-m", "dramatiq", "dramatiq_peer", "-p", "1", "-t", "8"]
    os.execv(sys.executable, command)


class Client:
    """Its own calls block: they go through threads."""

    async def open(self, url: str) -> None:
        self._redis: Any = redis.asyncio.from_url(url)

    async def submit_many(self, payloads: list[str]) -> None:
        await asyncio.to_thread(lambda: [noop.send(payload) for payload in payloads])

    async def submit_one(self, payload: str) -> None:
        await asyncio.to_thread(noop.send, payload)

    async def submit_at(self, payload: str, due: datetime) -> None:
        delay = max(0, round((due - datetime.now(UTC)).total_seconds() * 1000))
        await asyncio.to_thread(noop.send_with_options, args=(payload,), delay=delay)

    async def left(self) -> int:
        names = ("dramatiq:default.msgs", "dramatiq:default.DQ.msgs")
        return sum([int(await self._redis.hlen(name)) for name in names])

    async def log_bytes(self) -> int:
        return int((await self._redis.info("persistence"))["aof_current_size"])

    async def close(self) -> None:
        await self._redis.aclose()
