"""One client of a chaos run: what it does with each kind of work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from tests.chaos.calls import Calls, Ring
from tests.chaos.history import Journal, now
from tests.chaos.orders import Order

#: How long a keyed job is sent again before its outcome stays unknown.
KEYED_SECONDS = 90.0
_CANCEL_TRIES = 5
_REDRIVE_TRIES = 3
#: How long a client waits for the end of a job it starts over.
_END_SECONDS = 20.0
_LOOK_SECONDS = 0.3
_FAILED, _CANCELLED = 5, 6
TERMINAL = frozenset({4, 5, 6, 7})


class ChaosClient:
    """Submits one lot after the other, and looks back at some of them."""

    def __init__(
        self, name: str, ring: Ring, journal: Journal, on_acked: Callable[[str, str], None]
    ) -> None:
        self._calls = Calls(name, ring, journal, on_acked)
        self._later: set[asyncio.Task[None]] = set()

    async def submit(self, lot: Sequence[Order]) -> None:
        """Submit, and do what goes with the kind: send again, look back, cancel."""
        match lot[0].kind:
            case "batch" | "alike" | "limited" | "lane":
                if any(await self._calls.enqueue_batch(lot)):
                    await self._calls.list_lot(lot)
            # Most of them need a shard that is away, and would hold up all that is behind them.
            case "tree" | "alike_keyed":
                self._do_later(self._submit_again(lot), f"lot-{lot[0].ref}")
            case "steps":
                self._do_later(self._submit_steps(lot), f"steps-{lot[0].ref}")
            case "rivals":
                for order in lot:
                    self._do_later(self._submit_rival(order), f"rival-{order.ref}")
            case "crowd":
                jobs = await self._calls.enqueue_batch(lot)
                for order, job in zip(lot, jobs, strict=True):
                    self._follow(order, job)
            case "bulk":
                jobs = await self._calls.enqueue_batch(lot)
                self._do_later(self._redrive_lot(lot, jobs), f"bulk-{lot[0].ref}")
            case _:
                await self._submit_one(lot[0])

    async def read(self, order: Order, job: str) -> int:
        """Look at a job; its state, 0 if nobody could say."""
        return await self._calls.get(order, job)

    async def close(self) -> None:
        """Wait for what is to be done later, cancels and the like; that may bring more of it."""
        while self._later:
            await asyncio.gather(*self._later)

    # --- submitting

    async def _submit_one(self, order: Order) -> None:
        job = await (self._submit_keyed(order) if order.key else self._calls.enqueue(order))
        if not job:
            return
        self._follow(order, job)
        if order.kind in ("plain", "flaky"):
            await self.read(order, job)
        elif order.kind == "conflict":
            await self._calls.conflict(order, job)

    async def _submit_keyed(self, order: Order, ids: dict[str, str] | None = None) -> str:
        """The same key again and again until somebody says what became of it; then once more."""
        deadline = now() + KEYED_SECONDS
        job = ""
        while not job and now() < deadline:
            job = await self._calls.enqueue(order, ids)
        return await self._calls.enqueue(order, ids) or job if job else ""

    async def _submit_again(self, lot: Sequence[Order]) -> None:
        """In one message, and again until all of them are known; then once more, which must be the
        same jobs.
        """
        deadline = now() + KEYED_SECONDS
        jobs = [""] * len(lot)
        while not all(jobs) and now() < deadline:
            jobs = await self._calls.enqueue_batch(lot)
        for order, job in zip(lot, jobs, strict=True):
            self._cancel_later(order, job)
        await self._calls.enqueue_batch(lot)

    async def _submit_steps(self, lot: Sequence[Order]) -> None:
        """One by one, each when those it waits for have ids."""
        ids: dict[str, str] = {}
        for order in lot:
            if all(ref in ids for ref, _ in order.parents):
                job = await self._submit_keyed(order, ids)
                if job:
                    ids[order.ref] = job
                self._cancel_later(order, job)

    async def _submit_rival(self, order: Order) -> None:
        """At the same moment as others, or when one of them is about to end or to come back."""
        await asyncio.sleep(order.held_back)
        await self._submit_one(order)

    # --- later

    def _follow(self, order: Order, job: str) -> None:
        """What is to be done to a job that was stored, if it was."""
        self._cancel_later(order, job)
        if job and order.changes:
            self._do_later(self._change(order, job), f"change-{order.ref}")
        if job and order.redrives:
            self._do_later(self._redrive(order, job), f"redrive-{order.ref}")

    def _cancel_later(self, order: Order, job: str) -> None:
        if job and order.cancel_after is not None:
            self._do_later(self._cancel(order, job), f"cancel-{order.ref}")

    def _do_later(self, deed: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(deed, name=name)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _cancel(self, order: Order, job: str) -> None:
        await asyncio.sleep(order.cancel_after or 0)
        for _ in range(_CANCEL_TRIES):
            if await self._calls.cancel(order, job):
                await self.read(order, job)  # which shall know of it, whoever answers
                return

    async def _change(self, order: Order, job: str) -> None:
        """Each change once: what is unknown is not sent again, or nobody could tell them apart."""
        for change in order.changes:
            await asyncio.sleep(change.after)
            if await self._calls.update(order, job, change):
                await self.read(order, job)

    async def _redrive(self, order: Order, job: str) -> None:
        """Start it over when it has ended, and when what repeats it has ended once more."""
        newest = job
        for _ in range(order.redrives):
            if not await self._has_ended_badly(order, newest):
                return
            for _ in range(_REDRIVE_TRIES):
                if made := await self._calls.retry(order, job):
                    newest = made
                    break
            # Once more at once: while that one lives, it is the answer.
            newest = await self._calls.retry(order, job) or newest

    async def _redrive_lot(self, lot: Sequence[Order], jobs: Sequence[str]) -> None:
        """Start those of a lot over that have failed; and what repeats them, but not themselves."""
        for order, job in zip(lot, jobs, strict=True):
            if job:
                await self._end_of(order, job)
        for _ in range(2):
            await self._failed_again(lot)
            for _ in range(_REDRIVE_TRIES):
                if await self._calls.retry_lot(lot) is not None:
                    break

    async def _failed_again(self, lot: Sequence[Order]) -> None:
        """Wait until there is something to be started over."""
        deadline = now() + _END_SECONDS
        while now() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
            if await self._calls.retry_lot(lot, dry_run=True):
                return

    async def _has_ended_badly(self, order: Order, job: str) -> bool:
        return await self._end_of(order, job) in (_FAILED, _CANCELLED)

    async def _end_of(self, order: Order, job: str) -> int:
        """How it ended, 0 if nobody could say in time."""
        deadline = now() + _END_SECONDS
        while now() < deadline:
            state = await self.read(order, job)
            if state in TERMINAL:
                return state
            await asyncio.sleep(_LOOK_SECONDS)
        return 0
