"""Temporal: a workflow that runs one activity, counted when its history says it is completed.

That is the plainest durable job there that may do what a handler does: a workflow's own code has to
be deterministic and may not touch the world, so the work, its retries and its timeout belong to an
activity. There is no call that starts many; they are started beside each other.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import stamps
from temporalio import activity, workflow
from temporalio import client as temporal
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

QUEUE = "noop"
#: More than that and its writes to one file wait for each other until they time out.
AT_ONCE = 8
READY_SECONDS = 30


@activity.defn(name="noop")
async def noop(payload: str) -> None:
    stamps.stamp(payload)


@workflow.defn(name="job")
class Job:
    @workflow.run
    async def run(self, payload: str) -> None:
        limit = timedelta(minutes=1)
        await workflow.execute_activity(noop, payload, start_to_close_timeout=limit)


def serve(url: str) -> None:
    async def run() -> None:
        client = await temporal.Client.connect(url)
        # Without the sandbox, which costs CPU and protects from nothing here.
        runner = UnsandboxedWorkflowRunner()
        parts = {"workflows": [Job], "activities": [noop], "workflow_runner": runner}
        await Worker(client, task_queue=QUEUE, **parts).run()

    asyncio.run(run())


class Client:
    async def open(self, url: str) -> None:
        self._submitted = 0
        self._client = await temporal.Client.connect(url)
        async with asyncio.timeout(READY_SECONDS):
            while not await self._ready():  # noqa: ASYNC110 - no server tells
                await asyncio.sleep(0.2)

    async def _ready(self) -> bool:
        """The server takes calls before its namespace can be used."""
        try:
            return await self.left() == 0
        except RPCError:
            return False

    async def submit_many(self, payloads: list[str]) -> None:
        waiting = iter(payloads)

        async def caller() -> None:
            for payload in waiting:
                await self.submit_one(payload)

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))

    async def submit_one(self, payload: str) -> None:
        await self._start(payload, None)

    async def submit_at(self, payload: str, due: datetime) -> None:
        await self._start(payload, max(timedelta(0), due - datetime.now(UTC)))

    async def _start(self, payload: str, delay: timedelta | None) -> None:
        self._submitted += 1
        name = uuid.uuid4().hex
        await self._client.start_workflow(
            Job.run, payload, id=name, task_queue=QUEUE, start_delay=delay
        )

    async def left(self) -> int:
        ended = await self._client.count_workflows("ExecutionStatus = 'Completed'")
        return self._submitted - ended.count

    async def close(self) -> None:
        pass
