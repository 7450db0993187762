"""Jobs on their way to a worker: in columns it reads what it would have read in messages."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import bus_pb2

from services.mesh.jobs.alike import AlikeClaimed
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.limits import Limit
from services.mesh.jobs.model import NO_PAYLOAD, NO_TIMEOUTS, Claimed, ObjectRef, Payload, Timeouts
from services.mesh.wire.dispatches import (
    Sender,
    dispatch_batches,
    grab_from_bytes,
    grab_to_bytes,
)
from services.worker.convert import batch_from_bytes
from services.worker.convert import grab_to_bytes as asked
from services.worker.domain.attempt import Attempt

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NEWER = Grab("w", "t", 500, 1, "inbox", columns=True)
OLDER = replace(NEWER, columns=False)
SENDER = Sender("s", 1 << 20)

payloads = st.one_of(
    st.just(NO_PAYLOAD),
    st.builds(Payload.inline, st.binary(max_size=4), st.sampled_from(["", "text/plain"])),
    st.builds(Payload.stored, st.just(ObjectRef("key", 3)), st.just("text/plain")),
)


def job_id(number: int) -> UUID:
    return UUID(int=number << 80 | 7 << 76 | 2 << 62 | number)


def claimed(number: int, **differs: Any) -> Claimed:
    given = Payload.inline(b"%d" % number, "text/plain")
    like = Claimed(job_id(number), "n", "t", 1, 1, 3, NOW, NOW, NO_TIMEOUTS, given, None, 2)
    return replace(like, **differs)


@st.composite
def batches(draw: Any) -> list[Claimed]:
    """Mostly alike, so that columns happen; some differ in anything."""
    others = st.fixed_dictionaries(
        {},
        optional={
            "namespace": st.sampled_from(["n", "m"]),
            "fence": st.integers(1, 3),
            "attempt": st.integers(1, 3),
            "max_attempts": st.integers(0, 3),
            "due_time": st.sampled_from([NOW, NOW + SECOND]),
            "timeouts": st.sampled_from([NO_TIMEOUTS, Timeouts(run=SECOND, progress=SECOND)]),
            "input": payloads,
            "traceparent": st.sampled_from([None, "", "00-1-2-01"]),
            "total_left": st.sampled_from([None, SECOND]),
            "checkpoint": st.sampled_from([None, Payload.inline(b"c", "x")]),
            "limits": st.sampled_from([(), (Limit("type", 3),)]),
        },
    )
    common = draw(others)
    sizes = draw(st.integers(1, 12))
    odd = draw(st.dictionaries(st.integers(0, 11), others, max_size=1))
    return [claimed(n + 1, **common | odd.get(n, {})) for n in range(sizes)]


def read(grab: Grab, jobs: Any, sender: Sender = SENDER) -> list[Attempt]:
    sent = [batch_from_bytes(data) for data in dispatch_batches(grab, jobs, sender)]
    return [attempt for batch in sent for attempt in batch.attempts]


def told(attempts: list[Attempt]) -> list[dict[str, Any]]:
    return [{f.name: getattr(a, f.name) for f in fields(Attempt)} for a in attempts]


@given(batches())
def test_a_worker_reads_the_same_from_columns_as_from_messages(jobs):
    assert told(read(NEWER, jobs)) == told(read(OLDER, jobs))


@given(st.integers(1, 9), payloads)
def test_columns_of_one_statement_are_read_as_its_jobs(count, given_input):
    like = claimed(1, input=given_input)
    keys = [job_id(n + 1).bytes for n in range(count)]
    inputs = [b"%d" % n for n in range(count)]
    jobs = AlikeClaimed(like, keys, inputs)
    assert told(read(NEWER, jobs)) == told(read(OLDER, list(jobs))) == told(read(OLDER, jobs))


def test_jobs_that_are_alike_travel_in_columns_and_others_as_messages():
    (data,) = dispatch_batches(NEWER, [claimed(n) for n in range(1, 6)], SENDER)
    batch = bus_pb2.DispatchBatch.FromString(data)
    assert not batch.dispatches
    assert list(batch.alike.inputs) == [b"%d" % n for n in range(1, 6)]
    assert not batch.alike.like.job_id
    assert not batch.alike.like.input.data
    mixed = [*(claimed(n) for n in range(1, 5)), claimed(5, fence=2)]
    (data,) = dispatch_batches(NEWER, mixed, SENDER)
    assert len(bus_pb2.DispatchBatch.FromString(data).dispatches) == 5


def test_a_worker_that_reads_no_columns_is_sent_none():
    (data,) = dispatch_batches(OLDER, [claimed(n) for n in range(1, 9)], SENDER)
    assert not bus_pb2.DispatchBatch.FromString(data).HasField("alike")


def test_what_a_worker_reads_is_in_its_grab_and_stays_there_when_it_is_passed_on():
    grab = grab_from_bytes(asked("w", "t", 5, 1), "inbox")
    assert grab.columns
    assert grab_from_bytes(grab_to_bytes(grab), "inbox") == grab


def test_columns_larger_than_the_broker_takes_are_halved():
    jobs = AlikeClaimed(claimed(1), [job_id(n).bytes for n in range(1, 65)], [b"x" * 100] * 64)
    small = Sender("s", 2000)
    parts = list(dispatch_batches(NEWER, jobs, small))
    assert len(parts) > 1
    assert all(len(part) <= 2000 for part in parts)
    assert [a.key for a in read(NEWER, jobs, small)] == jobs.keys
    more = [batch_from_bytes(part).more for part in parts]
    assert more == [True] * (len(parts) - 1) + [False], "only the last one answers the grab"


@pytest.mark.parametrize(
    "broken",
    [
        {"job_ids": job_id(1).bytes[:-1]},
        {"job_ids": bytes(16)},
        {"job_ids": job_id(1).bytes, "inputs": [b"", b""]},
        {"job_ids": job_id(1).bytes, "due_times_us": [1, 2]},
        {"job_ids": job_id(1).bytes, "like": bus_pb2.Dispatch(dispatch_no=0)},
    ],
)
def test_columns_that_do_not_belong_together_are_no_batch(broken):
    columns = {"like": bus_pb2.Dispatch(dispatch_no=1)} | broken
    batch = bus_pb2.DispatchBatch(type="t", alike=bus_pb2.DispatchColumns(**columns))
    with pytest.raises(ValueError, match=r"job id|entries|dispatch_no"):
        batch_from_bytes(batch.SerializeToString())
