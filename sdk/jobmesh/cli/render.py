"""Jobs, schedules, pools and shards as tables and lines for people."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from jobmesh.cli.sayings import progress_words
from jobmesh.times import human

if TYPE_CHECKING:
    from rich.text import Text

    from jobmesh.model import Job, Schedule
    from jobmesh.v1.job_pb2 import JobSpec
    from jobmesh.v1.payload_pb2 import Payload
    from jobmesh.v1.pool_pb2 import Pool
    from jobmesh.v1.schedule_pb2 import Schedule as ScheduleMessage
    from jobmesh.v1.topology_pb2 import Shard

STYLES = {
    "SCHEDULED": "yellow",
    "DISPATCHED": "cyan",
    "RUNNING": "cyan",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
    "EXPIRED": "magenta",
    "BLOCKED": "yellow",
    "ready": "green",
    "HEALTHY": "green",
    "alive": "yellow",
    "SUSPECT": "yellow",
    "down": "red",
    "AWAY": "red",
}
PREVIEW_CHARACTERS = 200


def styled(word: str) -> Text:
    from rich.text import Text

    return Text(word, style=STYLES.get(word, ""))


def ago(time: datetime | None, now: datetime) -> str:
    """How long ago, or in how long."""
    if time is None:
        return ""
    seconds = (now - time).total_seconds()
    return f"{human(seconds)} ago" if seconds >= 0 else f"in {human(-seconds)}"


def clock(time: datetime | None) -> str:
    """A time of day or a date, in local time."""
    if time is None:
        return ""
    local = time.astimezone()
    today = datetime.now(UTC).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def pairs(labels: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


# --- jobs

JOB_COLUMNS = ("ID", "TYPE", "STATE", "TRY", "AGE", "TOOK", "NOTE")
#: Narrower than this, the note has no room beside the rest.
NOTE_WIDTH = 100


def job_row(job: Job, now: datetime) -> tuple[str | Text, ...]:
    took = ""
    if job.start_time is not None:
        took = human(((job.end_time or now) - job.start_time).total_seconds())
    note = str(job.failure) if job.failure else pairs(dict(job.labels))
    if job.state == "SCHEDULED" and job.due_time and job.due_time > now:
        note = f"due {ago(job.due_time, now)} {note}"
    note = " ".join(note.split())  # a failure may have many lines, a row of a pipe has one
    return (
        job.id,
        job.type,
        styled(job.state),
        str(job.attempt or ""),
        human((now - job.create_time).total_seconds()) if job.create_time else "",
        took,
        note[:PREVIEW_CHARACTERS],
    )


def job_details(job: Job, now: datetime) -> list[tuple[str, str | Text]]:
    """The rows of `jobmesh get`."""
    from jobmesh.v1.job_pb2 import Job as JobMessage

    assert isinstance(job.message, JobMessage)
    policy = job.message.spec.retry_policy
    rows: list[tuple[str, str | Text]] = [
        ("id", job.id),
        ("type", job.type),
        ("state", styled(job.state)),
        ("namespace", job.namespace),
        ("attempt", f"{job.attempt} of {policy.max_attempts or 1}" if job.attempt else ""),
        ("priority", str(job.priority) if job.priority else ""),
        ("labels", pairs(dict(job.labels))),
        ("unique key", _unique(job.message.spec)),
        ("concurrency key", job.message.spec.concurrency_key),
        ("after", " ".join(parent.job_id for parent in job.message.spec.dependencies)),
        ("created", f"{clock(job.create_time)} ({ago(job.create_time, now)})"),
        ("due", f"{clock(job.due_time)} ({ago(job.due_time, now)})"),
        ("started", clock(job.start_time)),
        ("ended", clock(job.end_time)),
        ("note", job.end_note),
        ("worker", job.worker_id),
        ("shard", job.shard),
        ("schedule", job.schedule),
        ("progress", _progress(job)),
        ("input", payload(job.message.spec.input)),
        ("output", payload(job.message.output) if job.state == "SUCCEEDED" else ""),
        ("failure", str(job.failure or "")),
    ]
    return [(name, value) for name, value in rows if value]


def _unique(spec: JobSpec) -> str:
    """`report (replace)`: the key, and what its submission did should it be held."""
    if not spec.unique_policy:
        return spec.unique_key
    return f"{spec.unique_key} ({_policy(spec, 'unique_policy')})"


def _progress(job: Job) -> str:
    if job.progress is None:
        return ""
    return progress_words(job.progress)


def payload(message: Payload) -> str:
    """A short content as it is, a long one by its size."""
    if message.WhichOneof("content") is None:
        return "(empty)"
    size = message.object.size_bytes if message.HasField("object") else len(message.data)
    kind = message.content_type or "bytes"
    if message.HasField("data") and size <= PREVIEW_CHARACTERS and message.data.isascii():
        return message.data.decode()
    return f"({size:,} bytes, {kind})"


ATTEMPT_COLUMNS = ("TRY", "OUTCOME", "WAITED", "RAN", "WORKER", "FAILURE")


def attempt_rows(job: Job) -> list[tuple[str | Text, ...]]:
    """The attempts of a job, oldest first."""
    return [
        (
            str(one.attempt),
            styled(one.outcome or "RUNNING"),
            _between(one.dispatch_time, one.start_time),
            _between(one.start_time, one.end_time),
            one.worker_id,
            str(one.failure or ""),
        )
        for one in job.attempts
    ]


def _between(start: datetime | None, end: datetime | None) -> str:
    return human((end - start).total_seconds()) if start and end else ""


# --- schedules, pools, shards

SCHEDULE_COLUMNS = ("NAME", "TYPE", "RULE", "NEXT", "RUNS", "LAST JOB")


def schedule_row(schedule: Schedule, now: datetime) -> tuple[str | Text, ...]:
    coming = f"{clock(schedule.next_time)} ({ago(schedule.next_time, now)})"
    if schedule.paused:
        coming = f"paused {schedule.pause_note}".rstrip()
    elif schedule.next_time is None:
        coming = "never"
    return (
        schedule.name,
        schedule.type,
        ", ".join(schedule.rules),
        coming,
        str(schedule.runs),
        schedule.last_job_id,
    )


#: What the policies about clocks are about.
_CLOCKS = ("gap", "overlap")


def schedule_message(schedule: Schedule) -> ScheduleMessage:
    from jobmesh.v1.schedule_pb2 import Schedule as ScheduleMessage

    assert isinstance(schedule.message, ScheduleMessage)
    return schedule.message


def schedule_details(schedule: Schedule, zone: tzinfo) -> list[tuple[str, str | Text]]:
    """Everything about one schedule, in names and values."""
    from jobmesh.cli.timeline import both

    message = schedule_message(schedule)
    state = f"paused {schedule.pause_note}".rstrip() if schedule.paused else ""
    rows = [
        ("name", schedule.name),
        ("type", schedule.type),
        ("rules", ", ".join(schedule.rules)),
        ("excluding", ", ".join(rule.cron.expression for rule in message.exclusions)),
        ("state", state),
        ("next", both(schedule.next_time, zone) or "never"),
        ("last", both(schedule.last_time, zone)),
        ("last job", schedule.last_job_id),
        ("runs", f"{schedule.runs}" + (f" of {message.max_runs}" if message.max_runs else "")),
        ("missed", str(message.missed or "")),
        ("waiting", str(message.waiting or "")),
        ("overlap", _policy(message, "overlap_policy")),
        ("catch up", _policy(message, "catch_up_policy")),
        ("clocks", ", ".join(_policy(message, f"dst_{which}_policy") for which in _CLOCKS)),
        ("on failure", "pause" if message.pause_on_failure else ""),
        ("concurrency key", message.template.concurrency_key),
        ("etag", schedule.etag),
    ]
    return [(name, value) for name, value in rows if value]


def overlap_of(schedule: Schedule) -> str:
    """What follows if a run is due while an earlier one has not ended, as `--overlap` has it."""
    return _policy(schedule_message(schedule), "overlap_policy").replace(" ", "-")


def _policy(message: ScheduleMessage | JobSpec, field: str) -> str:
    kind = message.DESCRIPTOR.fields_by_name[field].enum_type
    assert kind is not None
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    name = kind.values_by_number[getattr(message, field)].name
    return name.removeprefix(prefix).lower().replace("_", " ")


POOL_COLUMNS = ("TYPE", "WORKERS", "DESIRED", "BOUNDS", "BACKLOG", "WHY")


def pool_row(pool: Pool) -> tuple[str | Text, ...]:
    return (
        pool.spec.type,
        str(pool.actual),
        str(pool.desired),
        f"{pool.spec.min_workers}..{pool.spec.max_workers or 4}",
        str(pool.decision.backlog),
        "; ".join(text for text in (moving(pool), pool.decision.explanation) if text),
    )


def moving(pool: Pool) -> str:
    """Which of its workers come and go."""
    numbers = ((pool.starting, "starting"), (pool.draining, "draining"))
    return ", ".join(f"{number} {word}" for number, word in numbers if number)


SHARD_COLUMNS = ("SHARD", "HEALTH", "STATE", "BUCKETS", "PROBE", "LAST ERROR")


def shard_row(shard: Shard) -> tuple[str | Text, ...]:
    from jobmesh.v1.topology_pb2 import ShardHealth, ShardState

    return (
        shard.name,
        styled(ShardHealth.Name(shard.health).removeprefix("SHARD_HEALTH_")),
        ShardState.Name(shard.state).removeprefix("SHARD_STATE_"),
        str(shard.bucket_count),
        f"{shard.probe_ms:.1f} ms",
        shard.last_error,
    )
