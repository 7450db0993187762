"""Dispatch: what is due, and for whom it is taken."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from psycopg.errors import QueryCanceled

from services.mesh.errors import DeadlineExceeded, MeshError, ShardUnavailable
from services.mesh.jobs.model import BacklogStat, Claimed, Payload, Timeouts
from services.mesh.jobs.turns import Turn, Turned
from services.mesh.store.answers import ClaimAnswer, DueTime, Pulse, Slot
from services.mesh.store.base import Int8
from services.mesh.store.connection import Params, Row
from services.mesh.store.floors import MOST_LONG_AGO, FloorPace, lowering
from services.mesh.store.rows import payload
from services.mesh.store.sayings import Saying

log = logging.getLogger(__name__)

#: Jobs at the front of the line, or keys, that a claim by keys looks at.
KEY_WINDOW = 500
#: How many windows of keys one claim walks.
KEY_WALKS = 4
#: Namespaces that a claim in turn serves, and those it looks at for that.
TURN_NAMESPACES = 16
TURN_STEPS = 100
_LOWEST = -(2**15)
_FIRST_KEY = UUID(int=0)
_BEFORE = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Taken:
    """What one part of a claim brought: rows by priority, due time and id."""

    rows: list[Row] = field(default_factory=list)
    now: datetime = _BEFORE
    took: float = 0.0
    turned: Turned | None = None
    more: bool = False


@dataclass(slots=True)
class _Keyed:
    """A claim under way of a type with a limit per key."""

    type: str
    worker_id: str
    per_key: int
    held: dict[UUID, int]
    left: int
    rows: list[Row] = field(default_factory=list)
    seen: int = 0
    skipped: bool = False
    now: datetime = _BEFORE

    def params(self) -> dict[str, object]:
        held = {str(key): count for key, count in self.held.items()}
        return {
            "type": self.type,
            "worker_id": self.worker_id,
            "limit": Int8(self.left),
            "per_key": Int8(self.per_key),
            "held": json.dumps(held),
            "window": Int8(KEY_WINDOW),
        }

    def add(self, claimed: list[Row], seen: int, picked: int) -> None:
        """Take note of what one statement brought."""
        self.rows += claimed
        self.left -= len(claimed)
        self.seen = seen
        self.skipped = self.skipped or seen > picked
        for row in claimed:
            if (key := row[-1]) is not None:
                self.held[key] = self.held.get(key, 0) + 1


class Claiming(Saying):
    """Finds and takes due jobs."""

    #: By type, where the walk from key to key stopped.
    _walked: dict[str, UUID]
    _floors: FloorPace

    async def claim(
        self,
        type: str,
        worker_id: str,
        limit: int,
        ahead: timedelta = timedelta(0),
        recent: timedelta | None = None,
        below: int | None = None,
        turn: Turn | None = None,
    ) -> ClaimAnswer:
        """Take up to `limit` jobs that are due, or will be `ahead`, for a worker; with `recent`
        only such as have not been due for longer, with `below` only those of lower priorities. With
        a `turn` first from the namespaces it names, and what they leave from the front of the line.
        """
        wanted = {"type": type, "worker_id": worker_id, "ahead": ahead}
        begun = _Taken() if turn is None else await self._take_in_turn(wanted, turn, limit)
        line = await self._take_rest(begun, wanted, recent, below, limit)
        rows = line.rows if not begun.rows else sorted(begun.rows + line.rows, key=_in_line)
        stored = await self._checkpoints([row[0] for row in rows if row[-1]])
        return ClaimAnswer(
            [_claimed(type, row, stored.get(row[0])) for row in rows],
            line.now,
            more=line.more,
            took=line.took,
            lowest=line.rows[-1][5] if line.rows else 0,
            crowd=line.rows[-1][1] if line.rows else "",
            turned=begun.turned,
        )

    async def _take_in_turn(self, wanted: Params, turn: Turn, limit: int) -> _Taken:
        params = dict(wanted) | {
            "limit": Int8(limit),
            "after": turn.after,
            "besides": turn.besides,
            "least": Int8(_LOWEST if turn.least is None else turn.least),
            "namespaces": Int8(min(limit, TURN_NAMESPACES)),
            "steps": Int8(TURN_STEPS),
        }
        while True:
            found = await self._fetch("claim_in_turn", params)
            taken, now, ended, namespaces, last = found[0][:5]
            rows = [row[5:] for row in found if row[5] is not None]
            goes_round = not rows and last is None and params["after"]
            if not goes_round and (rows or not taken):  # else all places had outlived their jobs
                took = (ended - now).total_seconds()
                return _Taken(rows, now, took, Turned(len(rows), namespaces, last or "", took))
            params["after"] = "" if goes_round else params["after"]

    async def _take_rest(
        self,
        begun: _Taken,
        wanted: Params,
        recent: timedelta | None,
        below: int | None,
        limit: int,
    ) -> _Taken:
        """From the front of the line what there is still room for."""
        left = limit - len(begun.rows)
        if not left:
            return _Taken(now=begun.now, took=begun.took)
        params = dict(wanted) | {"recent": recent}
        params |= {} if below is None else {"below": Int8(below)}
        try:
            return await self._take_line("claim" if below is None else "claim_below", params, left)
        except MeshError:
            if not begun.rows:
                raise
            return _Taken(now=begun.now, more=True)  # those that were taken want to be sent

    async def _take_line(self, statement: str, params: Params, limit: int) -> _Taken:
        rows: list[Row] = []
        while True:
            found = await self._fetch(statement, dict(params) | {"limit": Int8(limit - len(rows))})
            claimed = [row[3:] for row in found if row[3] is not None]
            # Places that outlived their jobs were taken too: others may be due behind them.
            stale = found[0][0] > len(claimed)
            rows += claimed
            if not stale or len(rows) >= limit:
                break
        # The update gives them back in its own order.
        rows.sort(key=_in_line)
        return _Taken(rows, found[0][1], (found[-1][2] - found[0][1]).total_seconds())

    async def claim_keyed(
        self, type: str, worker_id: str, limit: int, per_key: int, held: Mapping[UUID, int]
    ) -> ClaimAnswer:
        """Take up to `limit` due jobs for a worker, of each key only as many as it has room."""
        call = _Keyed(type, worker_id, per_key, dict(held), limit)
        await self._take_keyed(call, "claim_keyed", {})
        # The front of the line may be full of keys without room: look behind them.
        more = call.left > 0 and call.seen >= KEY_WINDOW and await self._look_behind(call)
        rows = sorted(call.rows, key=_in_line)
        stored = await self._checkpoints([row[0] for row in rows if row[-2]])
        return ClaimAnswer(
            [
                replace(_claimed(type, row[:-1], stored.get(row[0])), limit_key=row[-1])
                for row in rows
            ],
            call.now,
            skipped=call.left > 0 and call.skipped,
            more=more,
        )

    async def _look_behind(self, call: _Keyed) -> bool:
        """Walk from key to key, on from where the last walk stopped; whether there are more."""
        first = last = self._walked.pop(call.type, _FIRST_KEY)
        for _ in range(KEY_WALKS):
            found = await self._take_keyed(call, "claim_keyed_behind", {"after": last})
            if found is None:
                # The end. What comes before the first was not looked at this time.
                return first != _FIRST_KEY
            last = found
            if not call.left:
                break
        self._walked[call.type] = last
        return True

    async def _take_keyed(
        self, call: _Keyed, statement: str, more: dict[str, object]
    ) -> UUID | None:
        stale, last = True, None
        while stale and call.left:
            found = await self._fetch(statement, call.params() | more)
            taken, call.now, seen, picked, last = found[0][:5]
            claimed = [row[5:] for row in found if row[5] is not None]
            stale = taken > len(claimed)
            call.add(claimed, seen, picked)
        return last

    async def pulse(
        self,
        start: datetime | None = None,
        width: timedelta = timedelta(0),
        limit: int = 1000,
        dispatch: timedelta = timedelta(0),
        *,
        deep: bool = True,
    ) -> Pulse:
        """What there is to do: in the slot that begins at `start`, or at the shard's now; and, if
        the look is a `deep` one, otherwise. Dispatches older than `dispatch` are overdue.

        DeadlineExceeded: so deep a look takes longer than a statement may.
        """
        began = asyncio.get_running_loop().time()
        everything = deep and self._floors.everything(began)
        params = {"start": start, "width": width, "limit": Int8(limit), "dispatch": dispatch}
        found = await self._looked(began, params | {"deep": deep, "everything": everything})
        ((now, types, times, counts, *rest, old_types, old_times, flying, dead, ended),) = found
        took = (ended - now).total_seconds()
        if everything:
            self._floors.looked(began, took)
        if old_types or flying:
            await self._lower_floors(lowering(old_types or (), old_times or (), flying))
        elif deep and self._floors.raises(began, dead):
            await self._raise_floors()
        due_times = list(map(DueTime, types or (), times or (), counts or ()))
        begin = now if start is None else start
        end = begin + width
        if len(due_times) == limit:
            # The page may have cut the last instant in two: the next slot begins with it again.
            end = max(due_times[-1].due_time, begin + timedelta(microseconds=1))
        seen = Pulse(Slot(now, begin, end, due_times), *rest)
        return replace(seen, deep=deep, took=took)

    async def _looked(self, began: float, params: dict[str, object]) -> list[Row]:
        if params["everything"]:
            self._floors.looking(began)
        try:
            return await self._fetch("pulse", params)
        except ShardUnavailable as error:
            if params["deep"] and isinstance(error.__cause__, QueryCanceled):
                # The shard is not away: it has more to walk over than it had time for.
                what = f"a look at shard {self._connections.shard} took too long"
                raise DeadlineExceeded(what) from error
            if params["everything"]:
                self._floors.again()
            raise

    async def _lower_floors(self, params: dict[str, object]) -> None:
        """Say what lies below them. What the look saw holds all the same if that fails."""
        try:
            await self._fetch("lower_floors", params)
        except MeshError as error:
            self._floors.again()
            log.warning(
                "cannot lower the floors: %s", error, extra=self._about("floors_not_lowered")
            )

    async def _raise_floors(self) -> None:
        params = {"deep": True, "everything": False, "most": Int8(MOST_LONG_AGO)}
        try:
            await self._fetch("raise_floors", params)
        except MeshError as error:
            log.warning(
                "cannot raise the floors: %s", error, extra=self._about("floors_not_raised")
            )

    def _about(self, action: str) -> dict[str, str]:
        return {"action": action, "shard": self._connections.shard}

    async def backlog(self, cap: int = 10_000) -> list[BacklogStat]:
        """The load per type."""
        params = {"cap": Int8(cap), "deep": True, "everything": False}
        rows = await self._fetch("backlog", params)
        return [
            BacklogStat(type_, due, due >= cap, age or timedelta(0), dispatched, running, upcoming)
            for type_, due, age, dispatched, running, upcoming in rows
        ]


def _in_line(row: Row) -> tuple[int, datetime, int]:
    """Highest priority, longest due, id."""
    return -row[5], row[6], row[0].int


def _claimed(type_: str, row: Row, checkpoint: Payload | None) -> Claimed:
    job_id, namespace, version, fence, attempt, _, due_time, dispatch_time, attempts = row[:9]
    timeouts, traceparent, data, kind, ref, total_end, _ = row[9:]
    return Claimed(
        job_id,
        namespace,
        type_,
        fence,
        attempt,
        attempts or 1,
        due_time,
        dispatch_time,
        Timeouts.from_json(timeouts),
        payload(kind, ref, None if data is None else len(data), data),
        traceparent,
        version,
        None if total_end is None else total_end - dispatch_time,
        checkpoint,
    )
