"""Five thousand jobs: submitted in a few messages, then watched until all have ended."""

import asyncio
import time
from collections import Counter

from jobmesh import AsyncClient, NewJob

COUNT = 5_000
WATCHED_AT_ONCE = 1_000


async def main() -> None:
    began = time.monotonic()
    async with AsyncClient() as client:
        acks = await client.enqueue_many(NewJob("echo", n) for n in range(COUNT))
        stored = time.monotonic() - began
        print(f"stored {COUNT} jobs in {stored:.2f} s ({COUNT / stored:.0f} a second)")
        ids = [ack.id for ack in acks]
        ends: Counter[str] = Counter()
        async with asyncio.TaskGroup() as group:
            for start in range(0, COUNT, WATCHED_AT_ONCE):
                group.create_task(follow(client, ids[start : start + WATCHED_AT_ONCE], ends))
    words = ", ".join(f"{count} {state}" for state, count in ends.items())
    print(f"after {time.monotonic() - began:.2f} s all have ended: {words}")


async def follow(client: AsyncClient, ids: list[str], ends: Counter[str]) -> None:
    async for event in client.watch(*ids):
        if event.state.terminal:
            ends[event.state] += 1


if __name__ == "__main__":
    asyncio.run(main())
