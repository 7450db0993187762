"""Items like one that passed are not held against the rules again; others always are."""

import pytest
from buf.validate import validate_pb2
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, payload_pb2

from services.enqueue.servicer.familiar import AlikeItems, FamiliarItems, shape_of
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


def test_only_what_may_be_met_again_is_said_to_be_learned():
    familiar = FamiliarItems()
    timed = item()
    timed.job.schedule_time.FromSeconds(1_800_000_000)
    many = item(**{f"label{n}": "x" * 60 for n in range(20)})
    seen = [familiar.learn(shape_of(one), one) for one in (item(), item(key="a\0"), timed, many)]
    assert seen == [True, False, False, False]


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


def gathered(familiar: FamiliarItems, *items: pb.EnqueueItem, large: int = 1000) -> AlikeItems:
    """As a request is gone through, but for the checks: what passed them was learned before."""
    groups = AlikeItems(familiar, lambda size: size > large)
    for number, one in enumerate(items):
        shape = shape_of(one)
        if not groups.take(shape, one, number) and familiar.covers(shape, one):
            groups.begin(shape, one, number)
    return groups


def test_the_first_one_with_so_many_bytes_goes_on_with_its_group():
    short, long_ = item(data=b"1"), item(data=b"123456789")
    familiar = learned(short)
    groups = AlikeItems(familiar, lambda size: False)
    shape = shape_of(short)
    assert groups.begin(shape, short, 0)
    assert not groups.take(shape, long_, 1)
    familiar.learn(shape, long_)
    assert groups.begin(shape, long_, 1)
    assert groups.take(shape, item(data=b"12345678"), 2)
    ((_, group),) = groups.taken(keyed=False)
    assert (group.numbers, group.inputs) == ([0, 1, 2], [b"1", b"123456789", b"12345678"])


def test_items_that_are_alike_are_gathered_with_their_numbers():
    first, other = item(data=b"12345"), item(type_="other")
    groups = gathered(
        learned(first, other), first, other, item(data=b"1"), item(type_="other", data=b"2")
    )
    assert [(group.numbers, group.inputs) for _, group in groups.taken(keyed=False)] == [
        ([0, 2], [b"12345", b"1"]),
        ([1, 3], [b"12345", b"2"]),
    ]


def test_items_with_keys_are_gathered_apart_from_those_without():
    first = item()
    groups = gathered(learned(first), first, item(key="k"), item(data=b"1"), item(key="l"))
    assert [group.numbers for _, group in groups.taken(keyed=False)] == [[0, 2]]
    assert [group.numbers for _, group in groups.taken(keyed=True)] == [[1, 3]]


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize(
    "other", [item(data=b"longer than what was seen"), item(type_="never-seen"), item(key="\0")]
)
def test_what_was_not_checked_is_gathered_by_nobody(other, key):
    first = item(key=key)
    groups = gathered(learned(first), first, other)
    ((_, group),) = [*groups.taken(keyed=False), *groups.taken(keyed=True)]
    assert group.numbers == [0]


def test_what_has_to_be_put_away_first_is_gathered_by_nobody():
    large = item(data=b"123456789")
    groups = AlikeItems(learned(large), lambda size: size > 5)
    assert groups.begin(shape_of(large), item(data=b"1"), 0)
    assert not groups.take(shape_of(large), large, 1)


def test_calls_have_the_key_rule_of_items():
    keys = [
        m.DESCRIPTOR.fields_by_name["idempotency_key"] for m in (pb.EnqueueItem, pb.EnqueueRequest)
    ]
    rules = [key.GetOptions().Extensions[validate_pb2.field].string for key in keys]
    assert rules[0] == rules[1]


@pytest.mark.parametrize("namespace", ["", "team-a", "Not A Namespace"])
def test_a_familiar_call_is_one_of_the_same_tenant(namespace):
    first = pb.EnqueueRequest(namespace="team-a", job=item().job)
    assert not RULES.violations(first)
    familiar = FamiliarItems()
    familiar.learn(shape_of(first), first)
    other = pb.EnqueueRequest(namespace=namespace, job=item(data=b"1").job, idempotency_key="k")
    assert familiar.covers(shape_of(other), other) == (namespace == "team-a")


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
