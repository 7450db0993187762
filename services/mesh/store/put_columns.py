"""New jobs as the columns of the statements that store them."""

from __future__ import annotations

from collections.abc import Sequence

from services.mesh.jobs.alike import AlikeJobs
from services.mesh.jobs.model import NO_TIMEOUTS, NewJob
from services.mesh.store.arrays import (
    Bigints,
    Blobs,
    Keys,
    Smallints,
    Texts,
    Times,
    Uuids,
    milliseconds,
    milliseconds_of,
)
from services.mesh.store.base import Int8
from services.mesh.store.rows import labels_to_json, to_json

#: What jobs that are alike do not have: they are due at once, and have no origin.
_ABSENT: dict[str, object] = {
    "due_times": Times(()),
    "delays": Bigints(()),
    "expire_times": Times(()),
    "input_refs": Texts(()),
    "schedule_ids": Uuids(()),
    "nominal_times": Times(()),
    "origin_ids": Uuids(()),
}


def put_params(jobs: Sequence[NewJob], epoch: int) -> dict[str, object]:
    """The columns of a batch of new jobs."""
    plain = [job.timeouts is NO_TIMEOUTS for job in jobs]
    return {
        "epoch": Int8(epoch),
        "ids": Uuids([job.id for job in jobs]),
        "namespaces": Texts([job.namespace for job in jobs]),
        "types": Texts([job.type for job in jobs]),
        "priorities": Smallints([job.priority for job in jobs]),
        "due_times": Times([job.due_time for job in jobs]),
        "delays": milliseconds([job.delay for job in jobs]),
        "expire_times": Times([job.expire_time for job in jobs]),
        "start_timeouts": milliseconds([job.timeouts.start for job in jobs]),
        "timeouts": Texts(
            [None if no else to_json(j.timeouts) for no, j in zip(plain, jobs, strict=True)]
        ),
        "retries": Texts([to_json(job.retry) for job in jobs]),
        "labels": Texts([labels_to_json(job.labels) for job in jobs]),
        "inputs": Blobs([job.input.data for job in jobs]),
        "input_types": Texts([job.input.content_type or None for job in jobs]),
        "input_refs": Texts([to_json(job.input.ref) for job in jobs]),
        "keys": Texts([job.idempotency_key for job in jobs]),
        "hashes": Blobs([job.request_hash for job in jobs]),
        "traceparents": Texts([job.traceparent for job in jobs]),
        "schedule_ids": Uuids([job.schedule_id for job in jobs]),
        "nominal_times": Times([job.nominal_time for job in jobs]),
        "origin_ids": Uuids([job.origin_id for job in jobs]),
        "concurrency_keys": Texts([job.concurrency_key for job in jobs]),
    }


def alike_params(jobs: AlikeJobs, epoch: int) -> dict[str, object]:
    """The columns of jobs that are alike: one value in most of them, encoded once."""
    like, count, keyed = jobs.like, len(jobs), jobs.keyed
    return {
        "epoch": Int8(epoch),
        "ids": Keys(jobs.keys),
        "namespaces": Texts.same(like.namespace, count),
        "types": Texts.same(like.type, count),
        "priorities": Smallints.same(like.priority, count),
        "start_timeouts": Bigints.same(milliseconds_of(like.timeouts.start), count),
        "timeouts": Texts.same(
            None if like.timeouts is NO_TIMEOUTS else to_json(like.timeouts), count
        ),
        "retries": Texts.same(to_json(like.retry), count),
        "labels": Texts.same(labels_to_json(like.labels), count),
        "inputs": Blobs(jobs.inputs) if jobs.has_data else Blobs(()),
        "input_types": Texts.same(like.input.content_type or None, count),
        "traceparents": Texts.same(like.traceparent, count),
        "concurrency_keys": Texts.same(like.concurrency_key, count),
        "keys": Texts(() if keyed is None else keyed.keys),
        "hashes": Blobs(() if keyed is None else keyed.hashes),
        **_ABSENT,
    }
