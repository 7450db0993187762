"""The mutants: each function breaks the process that calls it, before its service is built.

SQL is changed by replacing a piece of a named statement. A piece that is not there any more is an
error, so that no mutant quietly becomes a healthy mesh; a unit test looks at all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.mesh.store.queries import Queries

#: Statement, what stands there, what shall stand there.
Change = tuple[str, str, str]

NO_FENCE: tuple[Change, ...] = tuple(
    (
        statement,
        "j.dispatch_no = r.fence AND j.worker_id = r.worker_id AND j.state IN (1, 2, 3)",
        "j.state IN (1, 2, 3)",
    )
    for statement in ("succeed", "succeed_in_columns")
)
COUNTED_AT_END: tuple[Change, ...] = (
    ("claim", "attempt = j.attempt + 1", "attempt = j.attempt"),
    (
        "settle",
        "attempt = j.attempt - r.refund",
        "attempt = j.attempt + CASE WHEN r.loss = 0 THEN 1 - r.refund ELSE 0 END",
    ),
)
NO_LOCK: tuple[Change, ...] = (("due_schedules", "FOR UPDATE SKIP LOCKED", ""),)
NO_HORIZON: tuple[Change, ...] = (
    ("events_since", "SELECT pg_snapshot_xmin(", "SELECT pg_snapshot_xmax("),
)
BLIND_CANCEL: tuple[Change, ...] = (("cancel", "j.state IN (1, 2, 3, 8)", "j.state <> 6"),)
WALL_CLOCK: tuple[Change, ...] = tuple(
    (
        statement,
        "clock AS MATERIALIZED (SELECT clock_timestamp() AS now)",
        "clock AS MATERIALIZED (SELECT clock_timestamp() + interval '3 seconds' AS now)",
    )
    for statement in ("claim", "pulse")
)
EVENTS_APART: tuple[Change, ...] = tuple(
    (statement, "FROM ended e\n), committed", "FROM ended e WHERE random() < 0.7\n), committed")
    for statement in ("succeed", "succeed_in_columns")
)
CARELESS_PURGE: tuple[Change, ...] = (
    ("purge_jobs", "WHERE s.state IN (4, 5, 6, 7)", "WHERE true OR s.state IN (4, 5, 6, 7)"),
    ("purge_jobs", "WHERE j.id = o.id AND j.state IN (4, 5, 6, 7)", "WHERE j.id = o.id"),
    ("purge_jobs", "AND j.id < %(until)s", "AND %(until)s::uuid IS NOT NULL"),
)
RELEASED_AT_ONCE: tuple[Change, ...] = (
    ("put_tied_jobs", "CASE WHEN n.blockers > 0 THEN 8 ELSE 1 END", "1"),
)
FORGETFUL_UPDATE: tuple[Change, ...] = (
    (
        "update_job",
        "labels = CASE WHEN %(set_labels)s THEN %(labels)s::text::jsonb ELSE j.labels END",
        "labels = j.labels",
    ),
)
KEY_FOR_ALL: tuple[Change, ...] = (
    (
        "put_tied_jobs",
        "AND (n.unique_key IS NULL OR n.id IN (SELECT k.job_id FROM keyed k))",
        "",
    ),
)
REPEATED_WITHOUT_KEY: tuple[Change, ...] = (
    ("redrives", "j.unique_key", "NULL::text AS unique_key"),
)


def changed(queries: Queries, changes: Sequence[Change]) -> Queries:
    """The statements with these pieces replaced."""
    by_name = dict(queries.by_name)
    for name, old, new in changes:
        query = by_name[name]
        if query.sql.count(old) != 1:
            raise ValueError(f"mutant: {old!r} stands {query.sql.count(old)} times in {name}")
        by_name[name] = replace(query, sql=query.sql.replace(old, new))
    return Queries(by_name, queries.fragments)


def _break_sql(changes: Sequence[Change]) -> None:
    load = Queries.load
    Queries.load = lambda: changed(load(), changes)  # type: ignore[method-assign]


def no_fence() -> None:
    """M1: a result is taken from whoever brings it."""
    _break_sql(NO_FENCE)


def publish_before_commit() -> None:
    """M2: jobs are sent while their claim is still open; now and then it is not committed."""
    from services.mesh.errors import ShardUnavailable
    from services.scheduler.app.claimer import Claimer

    ask, turns = Claimer._ask, itertools.count(1)

    async def publish_first(self: Any, claim: Any) -> Any:
        if next(turns) % 4:
            return await ask(self, claim)
        store = self._shards._stores[claim.shard]
        async with store._connections.transaction() as connection:
            answer = await _claimed_in(store, connection, claim)
            await self._deliver(claim, answer.jobs)
            # A claim that fails at once is made again at once, and nobody could tell the two apart.
            await asyncio.sleep(0.4)
            raise ShardUnavailable(claim.shard)

    Claimer._ask = publish_first  # type: ignore[method-assign]


async def _claimed_in(store: Any, connection: Any, claim: Any) -> Any:
    """A claim within a transaction that somebody else ends."""
    from services.mesh.store.answers import ClaimAnswer
    from services.mesh.store.base import Int8
    from services.mesh.store.claiming import _claimed

    grab = claim.grab
    params = {"type": grab.type, "worker_id": grab.worker_id, "limit": Int8(claim.limit)}
    params |= {"ahead": claim.ahead, "recent": claim.recent}
    rows = await store._connections.run(connection, store._queries["claim"], params)
    found = [row[3:] for row in rows if row[3] is not None]
    return ClaimAnswer([_claimed(grab.type, row, None) for row in found], rows[0][1])


def no_sweeper() -> None:
    """M3: nobody looks for lost dispatches."""
    from services.scheduler.app.sweeping import Sweeper

    async def idle(self: Any) -> Mapping[str, int]:
        return {}

    Sweeper.run_once = idle  # type: ignore[method-assign, assignment]


def counted_at_end() -> None:
    """M4: an attempt counts when it ends."""
    _break_sql(COUNTED_AT_END)


def output_without_fence() -> None:
    """M5: all attempts of a job write the same object."""
    from services.worker.adapters import objects

    def one_key(namespace: str, job_id: Any, fence: int, name: str) -> str:
        return f"{namespace}/outputs/{job_id}/{name}"

    objects.output_key = one_key


def no_unique() -> None:
    """M6: with the index gone (the trial drops it), and the lock, a nominal time is made twice."""
    _break_sql(NO_LOCK)


def no_horizon() -> None:
    """M7: a watch reads up to the newest transaction, past those that have not committed."""
    _break_sql(NO_HORIZON)


def blind_cancel() -> None:
    """M8: a cancel does not look at the state."""
    _break_sql(BLIND_CANCEL)


def redirect_on_unknown() -> None:
    """M9: a job that may have been stored is stored elsewhere as well."""
    from services.mesh.errors import ShardUnavailable
    from services.orchestrator.app.storing import Storing

    async def give_up(self: Any, shard: str, jobs: Any, epoch: int) -> Any:
        raise ShardUnavailable(shard)

    Storing._settle = give_up  # type: ignore[method-assign]


def wall_clock() -> None:
    """M10: claims go by the clock of a scheduler that is three seconds ahead."""
    _break_sql(WALL_CLOCK)


def commit_again() -> None:
    """M11: the connection breaks at COMMIT, and COMMIT on a new one says that all is well."""
    from datetime import UTC, datetime

    from services.mesh.store.answers import PutAnswer
    from services.mesh.store.putting import Putting, _created

    put, turns = Putting._put_new, itertools.count(1)

    async def believe(self: Any, jobs: Any, epoch: int, worker_id: str | None = None) -> Any:
        if next(turns) % 5:
            return await put(self, jobs, epoch, worker_id)
        now = datetime.now(UTC)
        return PutAnswer([_created(job, now, now) for job in jobs], [])

    Putting._put_new = believe  # type: ignore[method-assign]


def commits_in_memory() -> None:
    """M12: commits are acknowledged before they are on disk."""
    from services.mesh.store import connection

    options = connection.connection_options

    def careless(settings: Any) -> dict[str, str | int]:
        found = options(settings)
        text = str(found["options"])
        return {**found, "options": text.replace("synchronous_commit=on", "synchronous_commit=off")}

    connection.connection_options = careless


def token_off_by_one() -> None:
    """M13: a resume token is read as one version more than was delivered."""
    from services.enqueue.app import watches

    read = watches.read_resume_token

    def ahead(token: str, job_ids: Sequence[str]) -> dict[str, int]:
        return {job: version + 1 for job, version in read(token, job_ids).items()}

    watches.read_resume_token = ahead


def rescue_by_age() -> None:
    """M14: whoever has jobs in hand for a while counts as dead."""
    from services.scheduler.app.rescuing import Rescuer

    async def rescue_all(self: Any) -> Mapping[str, int]:
        holders = await self._shards.ask(self.shard, lambda store: store.inflight_workers())
        return {"rescued": await self.rescue(holders) if holders else 0}

    Rescuer.run_once = rescue_all  # type: ignore[method-assign, assignment]


def careless_purge() -> None:
    """M15: what is deleted is not looked at again."""
    _break_sql(CARELESS_PURGE)


def events_apart() -> None:
    """M16: the event is written after the transition, and not always reached."""
    _break_sql(EVENTS_APART)


def released_at_once() -> None:
    """M17: a job that waits for others is due when it is stored."""
    _break_sql(RELEASED_AT_ONCE)


def no_limits() -> None:
    """M18: nobody is told of a limit."""
    from services.scheduler.app.limits import Limits

    def unlimited(self: Any, type_: str) -> None:
        return None

    Limits.settings = unlimited  # type: ignore[method-assign]


def forgetful_update() -> None:
    """M19: an update is acknowledged, and its labels are left out."""
    _break_sql(FORGETFUL_UPDATE)


def redriven_beside() -> None:
    """M20: a job is started over though what repeats it lives."""
    from services.mesh.store import changing

    changing.LIVE = frozenset()


def no_pause() -> None:
    """M21: who snoozes is due at once."""
    from services.mesh.store import reporting

    settle = reporting.settle_handed_back

    def at_once(report: Any) -> Any:
        return replace(settle(report), delay=None)

    reporting.settle_handed_back = at_once


def mixed_inputs() -> None:
    """M22: now and then a handler is given what was meant for the one before it."""
    from services.worker import convert

    read, read_columns = convert._attempt, convert._alike
    before, turns = dict[str, bytes](), itertools.count(1)

    def exchanged(attempt: Any) -> Any:
        type_ = attempt.type
        mine, attempt.data = attempt.data, before.get(type_, attempt.data)
        if mine and next(turns) % 3:
            attempt.data = mine
        before[type_] = mine or before.get(type_, b"")
        return attempt

    def mixed(message: Any, type_: str, key: bytes) -> Any:
        return exchanged(read(message, type_, key))

    def mixed_columns(columns: Any, type_: str) -> Any:
        return [exchanged(attempt) for attempt in read_columns(columns, type_)]

    convert._attempt, convert._alike = mixed, mixed_columns


def any_content() -> None:
    """M23: a known key is that job's, whatever comes with it."""
    from services.mesh.store.answers import PutOutcome
    from services.orchestrator.app.storing import Storing

    tell = Storing._outcome

    def lenient(self: Any, shard: str, result: Any) -> Any:
        if getattr(result, "outcome", None) is PutOutcome.CONFLICT:
            result = replace(result, outcome=PutOutcome.EXISTING)
        return tell(self, shard, result)

    Storing._outcome = lenient  # type: ignore[method-assign]


def key_for_all() -> None:
    """M24: a job is stored whether or not it got its unique key."""
    _break_sql(KEY_FOR_ALL)


def repeated_without_key() -> None:
    """M25: what repeats a job does not ask for its unique key."""
    _break_sql(REPEATED_WITHOUT_KEY)


def limits_of_keys_only() -> None:
    """M26: nobody is told of the limit of a type, only of those of its keys."""
    from services.scheduler.app.limits import Limits

    settings = Limits.settings

    def of_keys(self: Any, type_: str) -> Any:
        found = settings(self, type_)
        return found and replace(found, max_running=0)

    Limits.settings = of_keys  # type: ignore[method-assign]


def never_busy() -> None:
    """M28: a schedule does not look whether its runs have ended."""
    from services.mesh.store import firing

    admit = firing.admit

    def as_if_alone(policy: Any, times: Any, busy: bool, waiting: Any = ()) -> Any:
        return admit(policy, times, False, waiting)

    firing.admit = as_if_alone


def all_over_again() -> None:
    """M27: a redrive by filter also starts those over that were before."""
    from services.orchestrator.app.changes import Changes

    walk = Changes._walk

    async def any_of_them(self: Any, jobs: Any, *rest: Any, **options: Any) -> Any:
        return await walk(self, jobs and replace(jobs, redriven=None), *rest, **options)

    Changes._walk = any_of_them  # type: ignore[method-assign]


def put_after_replacing() -> None:
    """M29: answers to replacements are lost, and each is put again when its holder may have run."""
    from services.mesh.errors import OutcomeUnknown
    from services.mesh.store.tying import Tying

    replacing = Tying._replace

    async def lost(self: Any, job: Any, row: Any) -> Any:
        result, event = await replacing(self, job, row)
        if event is None:
            return result, event
        await asyncio.sleep(3.5)  # what it replaced runs meanwhile
        raise OutcomeUnknown(self._connections.shard)

    async def believed(self: Any, put: Any, place: int, row: Any) -> None:
        put.settle(place, *await self._replace(put.jobs[place], row))

    Tying._replace = lost  # type: ignore[method-assign]
    Tying._replace_for = believed  # type: ignore[method-assign]
