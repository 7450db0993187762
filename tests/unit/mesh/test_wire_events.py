"""A hint brings back the events that went in, and only those that are wanted."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import bus_pb2, job_pb2

from services.mesh.jobs.model import JobEvent
from services.mesh.jobs.retry import Failure
from services.mesh.jobs.states import Cause, JobState
from services.mesh.wire.events import event_to_proto, hint, read_hint

times = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
names = st.sampled_from(["default", "echo", "w-1", "render.fast"])
events = st.builds(
    JobEvent,
    job_id=st.uuids(version=4),
    version=st.integers(1, 2**40),
    state=st.sampled_from(list(JobState)),
    cause=st.sampled_from(list(Cause)),
    time=times,
    attempt=st.integers(0, 1000),
    fence=st.integers(0, 2**40),
    worker_id=st.none() | names,
    due_time=st.none() | times,
    failure=st.none() | st.builds(Failure, type=names, message=st.text(max_size=20)),
    note=st.none() | st.text(max_size=20),
    namespace=names,
    type=names,
)


def filled(hinted):
    event = job_pb2.JobEvent()
    hinted.fill(event)
    return event


@given(st.lists(events, max_size=20), st.data())
def test_what_is_wanted_comes_back_as_it_went_in(sent, data):
    chosen = (event.job_id for event in sent if data.draw(st.booleans()))
    wanted = {job_id.bytes: str(job_id) for job_id in chosen}
    got = [filled(event) for event in read_hint(hint("s0", sent), wanted)]
    assert got == [event_to_proto(event) for event in sent if event.job_id.bytes in wanted]


def test_what_is_no_hint_is_a_decode_error():
    with pytest.raises(DecodeError):
        read_hint(b"\xff\xff\xff", {})


def test_a_hint_whose_columns_do_not_fit_is_none():
    job_id = uuid4()
    batch = bus_pb2.EventBatch(job_ids=job_id.bytes, versions=[1], names=[""])
    with pytest.raises(ValueError, match="zip"):
        read_hint(batch.SerializeToString(), {job_id.bytes: str(job_id)})


def test_a_hint_of_a_plain_transition_is_small():
    event = JobEvent(
        uuid4(),
        2,
        JobState.DISPATCHED,
        Cause.CLAIMED,
        datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1),
        1,
        1,
        "w-host-12345678",
        None,
        None,
        None,
        "default",
        "echo",
    )
    assert len(hint("s0", [event] * 200)) / 200 < 40
