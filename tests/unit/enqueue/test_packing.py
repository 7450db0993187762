"""Jobs of single calls in one request: each caller is told of its own job."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import job_pb2, payload_pb2
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.adapters.packing import FEW, WORTH, packed, unpacked
from services.enqueue.convert import Single, spell_out
from services.mesh.errors import ShardUnavailable
from services.mesh.rpc.items import to_item_error

NOW_US = 1_800_000_000_123_456


def single(data: bytes = b"x", shape: bytes | None = b"s", **fields: str) -> Single:
    spec = job_pb2.JobSpec(type="t", input=payload_pb2.Payload(data=data, content_type="text"))
    return Single(pb.NewJob(namespace="n", spec=spec, **fields), shape)


def stored_by(request: pb.PutJobsRequest, handed: bool, failing: bool) -> pb.PutJobsResponse:
    """As an Orchestrator answers; the id of each job is made from its input."""
    answer = pb.PutJobsResponse()
    for job in request.jobs:
        answer.results.add().job.id = str(_id(job.spec.input.data))
    for group in (*request.groups, *request.keyed):
        count = len(group.inputs)
        first = len(request.jobs)
        if failing:
            for _ in range(count):
                answer.results.add().error.CopyFrom(to_item_error(ShardUnavailable("s0")))
            continue
        answer.stored.add(
            shard="s0",
            create_time_us=NOW_US,
            job_ids=b"".join(_id(data).bytes for data in group.inputs),
            places=range(first, first + count) if request.jobs else (),
            handed=handed,
        )
    return answer


def _id(data: bytes) -> UUID:
    return UUID(int=int.from_bytes(data, "big"))


def test_jobs_that_are_alike_are_a_group_without_their_bytes() -> None:
    request, places = packed([single(b"a"), single(b"b"), single(b""), single(b"c")])
    assert not request.jobs
    (group,) = request.groups
    assert list(group.inputs) == [b"a", b"b", b"", b"c"]
    assert group.like.spec.input == payload_pb2.Payload(data=b"", content_type="text")
    assert (request.columns, list(places)) == (True, [0, 1, 2, 3])


def test_jobs_without_an_input_are_alike_without_one() -> None:
    bare = Single(pb.NewJob(namespace="n", spec=job_pb2.JobSpec(type="t")), b"s")
    request, _ = packed([bare] * FEW)
    assert request.groups[0].like == bare.job


def test_a_few_go_as_they_are() -> None:
    assert len(packed([single()] * (FEW - 1))[0].jobs) == FEW - 1


def test_what_nothing_is_like_goes_as_it_is() -> None:
    jobs = [single(shape=None)] * FEW
    request, _ = packed(jobs)
    assert list(request.jobs) == [one.job for one in jobs]
    assert not request.columns


def test_with_few_others_among_them_all_are_one_statement() -> None:
    request, _ = packed([single(shape=b"other"), *[single()] * (WORTH - 1)])
    assert (len(request.jobs), len(request.groups)) == (WORTH, 0)
    request, places = packed([single(), single(shape=b"other"), *[single()] * (WORTH - 1)])
    assert (len(request.jobs), len(request.groups[0].inputs)) == (1, WORTH)
    assert list(places) == [1, 0, *range(2, WORTH + 1)]


def test_jobs_of_several_traces_and_large_ones_are_not_alike() -> None:
    large = single()
    large.job.spec.input.object.key = "k"
    request, _ = packed([*[single(traceparent="a")] * 3, single(traceparent="b"), large])
    assert len(request.jobs) == 5


def keyed(data: bytes = b"x", shape: bytes | None = b"s") -> Single:
    return single(data, shape, idempotency_key=f"k{data!r}", request_hash=data.ljust(32, b"h"))


def test_jobs_with_keys_that_are_alike_are_a_group_with_their_keys() -> None:
    singles = [keyed(b"%d" % n) for n in range(FEW)]
    request, places = packed(singles)
    assert list(places) == [*range(FEW)]
    assert not request.jobs
    assert not request.groups
    assert not request.keyed[0].like.idempotency_key
    spell_out(request)
    assert list(request.jobs) == [one.job for one in singles]


@pytest.mark.parametrize("other", [single(), keyed(shape=None)])
def test_jobs_with_keys_and_others_beside_them_all_go_as_they_are(other: Single) -> None:
    singles = [*[keyed(b"%d" % n) for n in range(WORTH)], other]
    request, places = packed(singles)
    assert list(request.jobs) == [one.job for one in singles]
    assert not request.keyed
    assert list(places) == [*range(WORTH + 1)]


def test_what_is_in_a_workers_hands_is_told_as_that() -> None:
    request, places = packed([single(b"\x01")] * FEW)
    for handed, state in (
        (True, job_pb2.JOB_STATE_DISPATCHED),
        (False, job_pb2.JOB_STATE_SCHEDULED),
    ):
        job = unpacked(stored_by(request, handed, failing=False), places)[0].job
        assert (job.state, job.version, job.shard) == (state, 1 + handed, "s0")
        assert job.create_time.ToMicroseconds() == job.due_time.ToMicroseconds() == NOW_US


@given(
    shapes=st.lists(st.sampled_from([b"s", b"s", b"s", b"u", None]), min_size=1, max_size=150),
    made=st.sampled_from([single, keyed]),
    handed=st.booleans(),
    failing=st.booleans(),
)
def test_each_caller_is_told_of_its_own_job(
    shapes: list[bytes | None], made: Callable[..., Single], handed: bool, failing: bool
) -> None:
    singles = [made(n.to_bytes(2, "big"), shape) for n, shape in enumerate(shapes)]
    request, places = packed(singles)
    results = unpacked(stored_by(request, handed, failing), places)
    in_group = {data for group in (*request.groups, *request.keyed) for data in group.inputs}
    for one, result in zip(singles, results, strict=True):
        data = one.job.spec.input.data
        if failing and data in in_group:
            assert result.HasField("error")
        else:
            assert result.job.id == str(_id(data))
