"""BullMQ on Redis, in Node: a job is in its completed set, and nowhere else, when it has ended."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).with_name("bullmq") / "peer.mjs")
LINE_LIMIT = 1 << 20


def serve(url: str) -> None:
    node = os.environ["PEER_NODE"]
    os.execv(node, [node, PROGRAM, "serve"])


class Client:
    """Orders for a Node process, which submits."""

    async def open(self, url: str) -> None:
        self._answers: dict[int, asyncio.Future[Any]] = {}
        pipe = asyncio.subprocess.PIPE
        command = [os.environ["PEER_NODE"], PROGRAM, "submit"]
        self._node = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, limit=LINE_LIMIT
        )
        self.pids = [self._node.pid]
        self._reader = asyncio.create_task(self._read())

    async def submit_many(self, payloads: list[str]) -> None:
        await self._order("many", payloads=payloads)

    async def submit_each(self, payloads: list[str], callers: int) -> None:
        """Single calls, all made over there: ours is not to slow them down."""
        await self._order("each", payloads=payloads, callers=callers)

    async def submit_one(self, payload: str) -> None:
        await self._order("one", payload=payload, delay=0)

    async def submit_at(self, payload: str, due: datetime) -> None:
        delay = max(0, round((due - datetime.now(UTC)).total_seconds() * 1000))
        await self._order("one", payload=payload, delay=delay)

    async def left(self) -> int:
        return int(await self._order("left"))

    async def log_bytes(self) -> int:
        return int(await self._order("logBytes"))

    async def close(self) -> None:
        self._node.stdin.close()  # type: ignore[union-attr]
        await self._node.wait()
        await self._reader

    async def _order(self, what: str, **details: Any) -> Any:
        number = len(self._answers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"number": number, "what": what, **details}) + "\n"
        self._node.stdin.write(line.encode())  # type: ignore[union-attr]
        return await answer

    async def _read(self) -> None:
        async for line in self._node.stdout:  # type: ignore[union-attr]
            told = json.loads(line)
            self._answers[told["number"]].set_result(told["result"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError("node ended"))
