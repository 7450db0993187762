"""PgQueuer with asyncpg: a job is gone from its queue, and in its log, when it has ended."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import stamps
import uvloop
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, Job, PgQueuer, Queries

TYPE = "noop"


def serve(url: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        app = PgQueuer(AsyncpgDriver(connection))

        @app.entrypoint(TYPE)
        async def noop(job: Job) -> None:
            stamps.stamp((job.payload or b"").decode())

        # A worker with room for as much as one of ours.
        await app.run(batch_size=500, dequeue_timeout=timedelta(seconds=1))

    uvloop.run(run())


class Client:
    """Submits over a pool of connections."""

    async def open(self, url: str) -> None:
        self._pool: Any = await asyncpg.create_pool(url, min_size=4, max_size=16)
        self._queries = Queries(AsyncpgPoolDriver(self._pool))
        await self._queries.install()

    async def submit_many(self, payloads: list[str]) -> None:
        count = len(payloads)
        data = [payload.encode() for payload in payloads]
        await self._queries.enqueue([TYPE] * count, data, [0] * count)

    async def submit_one(self, payload: str) -> None:
        await self._queries.enqueue(TYPE, payload.encode())

    async def submit_at(self, payload: str, due: datetime) -> None:
        delay = max(timedelta(0), due - datetime.now(UTC))
        await self._queries.enqueue(TYPE, payload.encode(), execute_after=delay)

    async def left(self) -> int:
        return int(await self._pool.fetchval("SELECT count(*) FROM pgqueuer"))

    async def log_bytes(self) -> int:
        return int(await self._pool.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    async def close(self) -> None:
        async with asyncio.timeout(5):
            await self._pool.close()
