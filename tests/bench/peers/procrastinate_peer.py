"""Procrastinate: a job's row says `succeeded` when it has ended."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import stamps
from procrastinate import App, PsycopgConnector


def app_of(url: str) -> App:
    app = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=16))

    @app.task(name="noop")
    async def noop(payload: str) -> None:
        stamps.stamp(payload)

    return app


def serve(url: str) -> None:
    async def run() -> None:
        app = app_of(url)
        async with app.open_async():
            await app.run_worker_async(concurrency=100, install_signal_handlers=False)

    asyncio.run(run())


class Client:
    async def open(self, url: str) -> None:
        self._app = app_of(url)
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        self._task: Any = self._app.tasks["noop"]

    async def submit_many(self, payloads: list[str]) -> None:
        await self._task.batch_defer_async(*({"payload": payload} for payload in payloads))

    async def submit_one(self, payload: str) -> None:
        await self._task.defer_async(payload=payload)

    async def submit_at(self, payload: str, due: datetime) -> None:
        await self._task.configure(schedule_at=due).defer_async(payload=payload)

    async def left(self) -> int:
        return await self._number(
            "SELECT count(*) AS n FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )

    async def log_bytes(self) -> int:
        return await self._number("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS n")

    async def _number(self, query: str) -> int:
        rows = await self._app.connector.execute_query_all_async(query)
        return int(rows[0]["n"])

    async def close(self) -> None:
        await self._app.close_async()
