"""Why a job is not running: one dominant reason, told in words with numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, unique


@unique
class Reason(IntEnum):
    """The numbers are those of the wire's WaitReason."""

    RUNNING = 1
    ENDED = 2
    NOT_DUE = 3
    RETRY_BACKOFF = 4
    NO_WORKER = 5
    POOL_SCALING = 6
    PAUSED = 7
    BLOCKED = 8
    SHARD_AWAY = 9
    QUEUED = 10
    LIMIT = 11


#: Of the jobs that one waits for, so many are named.
NAMED = 5


@dataclass(frozen=True, slots=True)
class Awaited:
    """A job that another one waits for. Type and state are empty while its shard is away."""

    job_id: str
    type: str = ""
    state: str = ""

    def __str__(self) -> str:
        if not self.state:
            return f"{self.job_id} (its shard is away)"
        return f"{self.job_id} ({self.type}, {self.state})"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the job's row says, and the line before it."""

    type: str
    state: str
    now: datetime
    due_time: datetime
    attempt: int = 0
    failure: str = ""
    worker_id: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None
    ahead: int = 0
    capped: bool = False
    starts_per_second: float = 0.0
    missing_shards: tuple[str, ...] = ()
    waits_for: tuple[Awaited, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool of the type, as the Scaler last told."""

    desired: int
    actual: int
    starting: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class LimitView:
    """A limit of the job's type or key, and how many attempts have a place of it."""

    held: int
    places: int
    of_key: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What etcd knows about the type. Not `known`: etcd did not answer."""

    workers: int = 0
    room: int = 0
    draining: int = 0
    pool: PoolView | None = None
    paused: str | None = None
    """The note, if the type is paused."""
    limits: tuple[LimitView, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason and its words; place in the queue and likely start, where there are any."""

    reason: Reason
    words: str
    position: int = 0
    capped: bool = False
    start: datetime | None = None
    blockers: tuple[str, ...] = ()
    """The jobs that it waits for."""


def explain(job: Standing, around: Surroundings) -> Explanation:
    """The dominant reason: the first that, were it gone, would leave the others to matter."""
    if job.state in ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"):
        return Explanation(Reason.ENDED, _ended(job))
    if job.state == "BLOCKED":
        return _blocked(job)
    if job.state in ("RUNNING", "DISPATCHED"):
        return Explanation(Reason.RUNNING, _running(job), start=job.start_time)
    if job.due_time > job.now:
        return _not_due(job)
    return _due(job, around)


def shard_away(shard: str) -> Explanation:
    """The row cannot be read, and so nobody can claim the job either."""
    words = f"shard {shard} is away: a job there is safe, and goes on when the shard is back"
    return Explanation(Reason.SHARD_AWAY, words)


def _ended(job: Standing) -> str:
    ago = f" {span(job.now - job.end_time)} ago" if job.end_time is not None else ""
    why = f": {job.failure}" if job.failure and job.state == "FAILED" else ""
    return f"it ended{ago}: {job.state}{why}"


def _running(job: Standing) -> str:
    if job.state == "DISPATCHED" or job.start_time is None:
        return f"it was handed to worker {job.worker_id}, which has not said yet that it began"
    took = span(job.now - job.start_time)
    return f"attempt {job.attempt} has been running on worker {job.worker_id} for {took}"


def _blocked(job: Standing) -> Explanation:
    waits = job.waits_for
    if not waits:
        return Explanation(Reason.BLOCKED, "all it waited for have ended: it is being released")
    named = ", ".join(map(str, waits[:NAMED]))
    more = f" and {len(waits) - NAMED} more" if len(waits) > NAMED else ""
    words = f"it waits for {'job' if len(waits) == 1 else f'{len(waits)} jobs:'} {named}{more}"
    return Explanation(Reason.BLOCKED, words, blockers=tuple(one.job_id for one in waits))


def _not_due(job: Standing) -> Explanation:
    wait = span(job.due_time - job.now)
    at = job.due_time.isoformat(timespec="seconds")
    if job.attempt and job.failure:
        words = f"attempt {job.attempt} failed ({job.failure}); the next is due in {wait}, at {at}"
        return Explanation(Reason.RETRY_BACKOFF, words, start=job.due_time)
    return Explanation(Reason.NOT_DUE, f"it is due in {wait}, at {at}", start=job.due_time)


def _due(job: Standing, around: Surroundings) -> Explanation:
    if around.paused is not None:
        note = f" ({around.paused})" if around.paused else ""
        words = f"type {job.type} is paused{note}: no job of it is started until it is resumed"
        return Explanation(Reason.PAUSED, words, job.ahead, job.capped)
    if around.known and not around.workers:
        reason, words = _without_workers(job, around)
        return Explanation(reason, f"{words}; {_line(job)}", job.ahead, job.capped)
    if full := [limit for limit in around.limits if limit.held >= limit.places]:
        words = f"{_limit(job, full[-1])}; {_line(job)}"
        return Explanation(Reason.LIMIT, words, job.ahead, job.capped)
    pace, start = job.starts_per_second, None
    words = f"{_line(job)}; {_workers(around)}"
    if pace > 0:
        wait = timedelta(seconds=(job.ahead + 1) / pace)
        start = job.now + wait
        words += f"; lately {pace:.3g} a second were started: about {span(wait)} to go"
    return Explanation(Reason.QUEUED, words + _doubts(job), job.ahead, job.capped, start)


def _without_workers(job: Standing, around: Surroundings) -> tuple[Reason, str]:
    pool = around.pool
    if pool is not None and (pool.desired or pool.starting):
        words = f"the pool of {job.type} has no worker yet and grows to {pool.desired}"
        words += f" ({pool.starting} starting)" if pool.starting else ""
        return Reason.POOL_SCALING, words + (f": {pool.why}" if pool.why else "")
    if around.draining:
        words = f"the last workers of {job.type} are stopping ({around.draining})"
        return Reason.NO_WORKER, words
    if pool is not None:
        why = f": {pool.why}" if pool.why else ""
        return Reason.NO_WORKER, f"the pool of {job.type} is to have no worker now{why}"
    return Reason.NO_WORKER, f"no worker serves {job.type}, and it has no pool: start a worker"


def _limit(job: Standing, limit: LimitView) -> str:
    """The one of the key, if both are reached: it is the narrower."""
    whose = "jobs with its concurrency key" if limit.of_key else f"type {job.type}"
    return f"the limit of {whose} is reached: {limit.held} of {limit.places} run"


def _line(job: Standing) -> str:
    if not job.ahead:
        return f"it has been due for {span(job.now - job.due_time)} and is the next of its type"
    many = f"{'more than ' if job.capped else ''}{job.ahead}"
    noun = "job is" if job.ahead == 1 and not job.capped else "jobs are"
    return f"{many} due {noun} before it"


def _workers(around: Surroundings) -> str:
    if not around.known:
        return "the workers are not known, since etcd is away"
    words = f"{around.workers} {'worker has' if around.workers == 1 else 'workers have'} room for"
    words += f" {around.room} at once"
    pool = around.pool
    if pool is not None and pool.desired > pool.actual:
        words += f", and their pool grows to {pool.desired}"
    return words


def _doubts(job: Standing) -> str:
    if not job.missing_shards:
        return ""
    return f" (not counted: shards that are away, {', '.join(job.missing_shards)})"


def span(length: timedelta) -> str:
    """A span for people: 0.4 s, 12 s, 5 min, 3.2 h, 2.1 days."""
    seconds = max(length.total_seconds(), 0.0)
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
