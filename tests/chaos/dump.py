"""What was true at the end: rows, events and schedules of all shards, objects, locks.

Read past the services, with the database logins and keys of the mesh itself, into JSON lines that
the checker reads. Two dumps of one run show what changed between them.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

OPEN_STATES = (1, 2, 3, 8)
_JOBS = """
SELECT id::text, namespace, type, state, version, dispatch_no, attempt, losses, worker_id,
       idempotency_key AS key, labels, schedule_id::text AS schedule,
       extract(epoch FROM nominal_time)::float8 AS nominal,
       extract(epoch FROM due_time)::float8 AS due,
       extract(epoch FROM first_due_time)::float8 AS first_due,
       extract(epoch FROM create_time)::float8 AS created,
       extract(epoch FROM end_time)::float8 AS ended,
       retry, output, output_ref, input_ref, priority, origin_id::text AS origin, unique_key,
       CASE WHEN schedule_id IS NULL AND NOT coalesce(labels ? 'ref', false) THEN input END AS input
FROM jobs
"""
_EVENTS = """
SELECT job_id::text, version, state, reason, dispatch_no, attempt, worker_id,
       extract(epoch FROM time)::float8
FROM job_events ORDER BY job_id, version
"""
_SCHEDULES = """
SELECT id::text, name, namespace, paused, extract(epoch FROM next_time)::float8 AS next,
       extract(epoch FROM create_time)::float8 AS created, missed,
       ARRAY(SELECT extract(epoch FROM t)::float8 FROM unnest(waiting) AS t) AS waiting
FROM schedules
"""
_KEYS = "SELECT namespace, key, job_id::text AS job FROM unique_keys"


def open_jobs(dsns: Mapping[str, str]) -> dict[str, int]:
    """Jobs that have not ended, per shard."""
    counts = {}
    for shard, dsn in dsns.items():
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            query = "SELECT count(*) FROM jobs WHERE state = ANY(%s)"
            row = connection.execute(query, [list(OPEN_STATES)]).fetchone()
            assert row is not None
            counts[shard] = row[0]
    return counts


def stored_jobs(dsns: Mapping[str, str]) -> set[str]:
    """The ids of all jobs."""
    found: set[str] = set()
    for dsn in dsns.values():
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            found |= {row[0] for row in connection.execute("SELECT id::text FROM jobs")}
    return found


def late_schedules(dsns: Mapping[str, str], seconds: float = 1.0) -> list[str]:
    """The schedules that have not been fired for longer than that after their time."""
    query = """
        SELECT name FROM schedules
        WHERE NOT paused AND next_time < clock_timestamp() - make_interval(secs => %s)
    """
    found: list[str] = []
    for dsn in dsns.values():
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            found += [row[0] for row in connection.execute(query, [seconds])]
    return found


async def settle(
    dsns: Mapping[str, str],
    seconds: float = 60.0,
    on_look: Callable[[dict[str, int]], None] = lambda counts: None,
) -> bool:
    """Wait until every job has ended; False if some have not in time."""
    deadline = time.monotonic() + seconds
    while True:
        counts = await asyncio.to_thread(open_jobs, dsns)
        on_look(counts)
        if not any(counts.values()):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.5)


def dump_shards(dsns: Mapping[str, str], folder: Path) -> None:
    """Write `jobs.jsonl`, `events.jsonl`, `schedules.jsonl` and `unique_keys.jsonl` of all shards
    into a folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "jobs.jsonl").open("w") as jobs,
        (folder / "events.jsonl").open("w") as events,
        (folder / "schedules.jsonl").open("w") as schedules,
        (folder / "unique_keys.jsonl").open("w") as keys,
    ):
        for shard, dsn in dsns.items():
            # One snapshot for all of them, or a job could seem to have no events.
            with psycopg.connect(dsn, connect_timeout=5) as connection:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                for row in _rows(connection, _JOBS):
                    jobs.write(_line({"shard": shard, **row}))
                for row in _rows(connection, _SCHEDULES):
                    schedules.write(_line({"shard": shard, **row}))
                for row in _rows(connection, _KEYS):
                    keys.write(_line({"shard": shard, **row}))
                with connection.cursor("events") as cursor:  # by portions: they are many
                    for event in cursor.execute(_EVENTS):
                        events.write(_line(event))


def _rows(connection: psycopg.Connection[Any], query: str) -> Iterator[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(query.encode())
        yield from cursor


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain) + "\n"


def _plain(value: object) -> str:
    assert isinstance(value, bytes | memoryview), type(value)
    return base64.b64encode(bytes(value)).decode()


class Objects:
    """The buckets of a mesh."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        import boto3
        from botocore.config import Config

        self._client = boto3.client(
            "s3",
            endpoint_url=environment["JOBMESH_S3_ENDPOINT"],
            region_name=environment["JOBMESH_S3_REGION"],
            aws_access_key_id=environment["JOBMESH_S3_ACCESS_KEY"],
            aws_secret_access_key=environment["JOBMESH_S3_SECRET_KEY"],
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        self._buckets = {
            "input": environment["JOBMESH_S3_INPUT_BUCKET"],
            "output": environment["JOBMESH_S3_OUTPUT_BUCKET"],
        }

    def dump(self, folder: Path) -> None:
        """Write `objects.jsonl`: every object, and the fence that an output says it comes from."""
        with (folder / "objects.jsonl").open("w") as file:
            for role, page in self._pages():
                for item in page:
                    said = {"role": role, "key": item["Key"], "size": item["Size"]}
                    if role == "output" and "/outputs/" in item["Key"]:
                        said |= _origin(self._read(role, item["Key"]))
                    file.write(_line(said))

    def forget(self) -> None:
        """Remove them all."""
        for role, page in self._pages():
            keys = [{"Key": item["Key"]} for item in page]
            self._client.delete_objects(Bucket=self._buckets[role], Delete={"Objects": keys})

    def close(self) -> None:
        self._client.close()

    def _pages(self) -> Iterator[tuple[str, list[Any]]]:
        pages = self._client.get_paginator("list_objects_v2")
        for role, bucket in self._buckets.items():
            for page in pages.paginate(Bucket=bucket):
                if page.get("Contents"):
                    yield role, page["Contents"]

    def _read(self, role: str, key: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self._buckets[role], Key=key)["Body"].read())


def _origin(body: bytes) -> dict[str, Any]:
    """Which attempt wrote an output, in its own words."""
    try:
        said = json.loads(body)
    except ValueError:
        return {"torn": True}
    digest = hashlib.sha256(body).hexdigest()
    return {"job": said["job"], "fence": said["fence"], "sha256": digest}


def dump(dsns: Mapping[str, str], environment: Mapping[str, str], folder: Path) -> None:
    """The whole dump at the end of a run."""
    dump_shards(dsns, folder)
    with closing(Objects(environment)) as objects:
        objects.dump(folder)
