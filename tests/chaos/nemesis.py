"""The nemesis: carries a plan out, a few faults at once, and logs what it really did.

Each line of `faults.jsonl` is one fault: when it began, when it was done (`struck`: on a busy
machine that may take a while), when its undoing began (`until`), when all was well again
(`healed`), and how many jobs were in flight when it struck.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.history import Journal, now
from tests.chaos.plan import KINDS, Fault
from tests.chaos.strikes import Strikes

AT_ONCE = 3


async def _no_rest() -> None:
    """The default: the next fault may begin at once."""


class Nemesis:
    """Strikes as planned. No unit is struck by two faults at once, unless by way of its links."""

    def __init__(
        self,
        strikes: Strikes,
        folder: Path,
        on_struck: Callable[[Fault, dict[str, Any]], None] = lambda fault, line: None,
        on_healed: Callable[[Fault, dict[str, Any]], None] = lambda fault, line: None,
    ) -> None:
        self._strikes = strikes
        self._folder = folder
        self._on_struck = on_struck
        self._on_healed = on_healed
        self._at_once = AT_ONCE
        self._rest: Callable[[], Awaitable[None]] = _no_rest
        self._log = Journal(folder / "faults.jsonl")
        self._busy: set[str] = set()
        self._free = asyncio.Condition()
        self._under_way = 0
        self._spoilt: set[str] = set()
        """Units that a fault of ours may have left dead, since it could not be undone."""
        self.done = 0
        self.current: list[str] = []

    def go_apart(self, rest: Callable[[], Awaitable[None]]) -> None:
        """One fault at a time from now on, and after each of them this rest."""
        self._at_once, self._rest = 1, rest

    async def carry_out(self, plan: Sequence[Fault], until: float) -> None:
        """All faults at their times, or later where they would collide; none after `until`."""
        begin = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                elapsed = asyncio.get_running_loop().time() - begin
                await asyncio.sleep(max(0.0, fault.at - elapsed))
                await self._room(fault)
                if asyncio.get_running_loop().time() - begin > until:
                    break
                self._take(fault)
                group.create_task(self._carry_out(fault), name=f"fault-{fault.number}")
        self._log.close()

    async def _room(self, fault: Fault) -> None:
        async with self._free:
            await self._free.wait_for(lambda: self._fits(fault))

    def _fits(self, fault: Fault) -> bool:
        if self._under_way == 0:
            return True
        alone = KINDS[fault.kind].alone or "all" in self._busy
        return not alone and self._under_way < self._at_once and self._busy.isdisjoint(fault.units)

    def _take(self, fault: Fault) -> None:
        self._under_way += 1
        self._busy.update(fault.units)
        if KINDS[fault.kind].alone:
            self._busy.add("all")
        self.current.append(f"{fault.kind} {fault.target}")

    async def _release(self, fault: Fault) -> None:
        async with self._free:
            self._under_way -= 1
            self._busy.difference_update(fault.units)
            if KINDS[fault.kind].alone:
                self._busy.discard("all")
            self.current.remove(f"{fault.kind} {fault.target}")
            self._free.notify_all()

    async def _carry_out(self, fault: Fault) -> None:
        detail: dict[str, Any] = {}
        line = {"number": fault.number, "kind": fault.kind, "target": fault.target}
        line |= {"in_flight": self._in_flight(), "began": now(), "detail": detail}
        try:
            line["found_dead"] = sorted({*self._strikes.found_dead(fault)} - self._spoilt)
            async with self._strikes.strike(fault, detail):
                line["struck"] = now()
                self._on_struck(fault, line)
                await asyncio.sleep(fault.seconds)
                line["until"] = now()
            line["healed"] = now()
            self._on_healed(fault, line)
        except Exception as error:
            line["error"] = "".join(traceback.format_exception(error))
            self._spoilt.update(self._strikes.found_dead(fault))
            await self._strikes.mend()
        finally:
            self.done += 1
            self._log.write(**line)
            await self._rest()
            await self._release(fault)

    def _in_flight(self) -> int:
        try:
            told = json.loads((self._folder / "progress.json").read_text())
        except (OSError, ValueError):
            return 0
        return int(told["open"])
