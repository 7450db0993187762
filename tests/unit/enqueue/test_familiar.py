"""Items like one that passed are not held against the rules again; others always are."""

import pytest
from buf.validate import validate_pb2
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2

from services.enqueue.servicer.familiar import FamiliarItems, shape_of
from services.mesh.rpc import Rules

RULES = Rules()
TEXT = st.sampled_from(
    ["", "a", "noop", "Bad Type", "x" * 70, "a\0b", "x" * 201, "application/json"]
)


def item(
    type_="noop", data=b"12345", key="", priority=0, content_type="", **labels
) -> pb.EnqueueItem:
    spec = job_pb2.JobSpec(
        type=type_,
        priority=priority,
        labels=labels,
        input=payload_pb2.Payload(data=data, content_type=content_type),
    )
    return pb.EnqueueItem(job=spec, idempotency_key=key)


def learned(*items: pb.EnqueueItem) -> FamiliarItems:
    familiar = FamiliarItems()
    for one in items:
        if not RULES.violations(one):
            familiar.learn(shape_of(one), one)
    return familiar


def is_covered(familiar: FamiliarItems, one: pb.EnqueueItem) -> bool:
    return familiar.covers(shape_of(one), one)


def test_other_bytes_and_another_key_are_familiar():
    familiar = learned(item(key="k1"))
    assert is_covered(familiar, item(data=b"abc", key="k2"))
    assert is_covered(familiar, item(data=b""))


@pytest.mark.parametrize(
    "other",
    [
        item(type_="other"),
        item(data=b"longer than what was seen"),
        item(key="x" * 201),
        item(key="a\0"),
        item(priority=3),
        item(team="a"),
    ],
)
def test_anything_else_is_not(other):
    assert not is_covered(learned(item()), other)


def test_a_job_with_a_time_is_looked_at_each_time():
    timed = item()
    timed.job.schedule_time.GetCurrentTime()
    assert not is_covered(learned(timed), timed)


def test_looking_at_an_item_leaves_it_as_it_was():
    one = item(key="k", team="a")
    before = one.SerializeToString(deterministic=True)
    shape_of(one)
    assert one.SerializeToString(deterministic=True) == before


def test_of_the_bytes_the_contract_bounds_only_the_length():
    field = payload_pb2.Payload.DESCRIPTOR.fields_by_name["data"]
    rules = field.GetOptions().Extensions[validate_pb2.field]
    assert [f.name for f, _ in rules.ListFields()] == ["bytes"]
    assert [f.name for f, _ in rules.bytes.ListFields()] == ["max_len"]


@given(
    st.lists(
        st.builds(
            item,
            type_=TEXT,
            data=st.binary(max_size=4),
            key=TEXT,
            priority=st.sampled_from([-1, 0, 9, 10]),
            content_type=TEXT,
            label=TEXT,
        ),
        max_size=6,
    )
)
def test_what_is_covered_breaks_no_rule(items):
    familiar = learned(*items)
    for one in items:
        if is_covered(familiar, one):
            assert not RULES.violations(one)
