"""Small batches of one namespace travel together, and each caller gets what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.adapters.company import LARGE, Company, Singles, count_of, joined
from services.enqueue.convert import Single, Submitted
from services.mesh.errors import OutcomeUnknown
from services.mesh.runtime import Tasks
from services.mesh.testing.waiting import eventually


def batch(namespace: str, *names: str) -> pb.PutJobsRequest:
    return pb.PutJobsRequest(
        jobs=[pb.NewJob(namespace=namespace, idempotency_key=name) for name in names]
    )


def names_in(request: pb.PutJobsRequest) -> list[str]:
    """What an Orchestrator would answer: the jobs, then the groups, each in order. A hash is its
    key here.
    """
    names = [job.idempotency_key for job in request.jobs]
    for group in (*request.groups, *request.keyed):
        names += [f"{group.like.spec.type} {data.decode()}" for data in group.inputs]
        assert len(group.idempotency_keys) == (len(group.inputs) if request.keyed else 0)
        assert group.request_hashes == "".join(group.idempotency_keys).encode()
    return names


class Orchestrator:
    """Answers each job with its name, when it is told to."""

    def __init__(self) -> None:
        self.puts: list[list[str]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def put(self, request: pb.PutJobsRequest) -> list[Submitted]:
        self.puts.append(names_in(request))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [*names_in(request)]


class NoPace:
    """Namespaces that are stored at once."""

    def is_spent(self, namespace: str) -> bool:
        return False

    def pause(self, namespace: str) -> float:
        return 0.0

    def went(self, namespace: str) -> None:
        pass


class LoudPace(NoPace):
    """One of them, `loud`, is stored with pauses."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        self.gone: list[str] = []

    def is_spent(self, namespace: str) -> bool:
        return namespace == "loud"

    def pause(self, namespace: str) -> float:
        return self.seconds if namespace == "loud" else 0.0

    def went(self, namespace: str) -> None:
        self.gone.append(namespace)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def sent(company: Company, *requests: pb.PutJobsRequest) -> list[asyncio.Task[list[Submitted]]]:
    return [asyncio.create_task(company.put(request)) for request in requests]


async def test_a_lone_batch_goes_at_once_and_as_it_is() -> None:
    orchestrator = Orchestrator()
    orchestrator.gate.set()
    assert await Company(orchestrator.put, Tasks(), NoPace()).put(batch("n", "a", "b")) == [
        "a",
        "b",
    ]
    assert orchestrator.puts == [["a", "b"]]


async def test_what_comes_while_others_are_under_way_is_one_put() -> None:
    orchestrator = Orchestrator()
    company = Company(orchestrator.put, Tasks(), NoPace())
    calls = sent(company, *(batch("n", f"{n}a", f"{n}b") for n in range(30)))
    await settle()
    alone = len(orchestrator.puts)
    orchestrator.gate.set()
    assert await asyncio.gather(*calls) == [[f"{n}a", f"{n}b"] for n in range(30)]
    assert alone < 10
    assert len(orchestrator.puts) == alone + 1


async def test_namespaces_stay_apart() -> None:
    orchestrator = Orchestrator()
    company = Company(orchestrator.put, Tasks(), NoPace())
    calls = sent(company, *(batch("ab"[n % 2], f"{'ab'[n % 2]}{n}") for n in range(40)))
    await settle()
    orchestrator.gate.set()
    await asyncio.gather(*calls)
    assert all(len({name[0] for name in put}) == 1 for put in orchestrator.puts)


async def test_a_large_batch_waits_for_nobody() -> None:
    orchestrator = Orchestrator()
    company = Company(orchestrator.put, Tasks(), NoPace())
    large = batch("n", *(f"{n}" for n in range(LARGE)))
    calls = sent(company, *([large] * 6))
    await settle()
    assert len(orchestrator.puts) == 6
    orchestrator.gate.set()
    await asyncio.gather(*calls)


async def test_an_error_is_that_of_every_batch_in_it_and_nothing_is_kept() -> None:
    orchestrator = Orchestrator()
    orchestrator.error = OutcomeUnknown("unknown")
    company = Company(orchestrator.put, Tasks(), NoPace())
    calls = sent(company, *(batch("n", f"{n}") for n in range(20)))
    await settle()
    orchestrator.gate.set()
    for call in calls:
        with pytest.raises(OutcomeUnknown):
            await call
    assert not company._others


async def test_a_caller_that_goes_away_hurts_nobody_and_is_not_sent() -> None:
    orchestrator = Orchestrator()
    company = Company(orchestrator.put, Tasks(), NoPace())
    calls = sent(company, *(batch("n", f"{n}") for n in range(12)))
    await settle()
    calls[0].cancel()  # under way
    calls[-1].cancel()  # still waiting
    await settle()
    orchestrator.gate.set()
    told = await asyncio.gather(*calls[1:-1])
    assert told == [[f"{n}"] for n in range(1, 11)]
    assert "11" not in [name for put in orchestrator.puts for name in put]
    assert not company._others


async def test_nothing_is_kept_of_a_namespace_whose_only_caller_went_away() -> None:
    orchestrator = Orchestrator()
    company = Company(orchestrator.put, Tasks(), NoPace())
    (call,) = sent(company, batch("n", "a"))
    await settle()
    call.cancel()
    await settle()
    orchestrator.gate.set()
    await settle()
    assert not company._others


async def test_batches_that_hang_do_not_hold_up_the_next() -> None:
    orchestrator = Orchestrator()
    company = Company(orchestrator.put, Tasks(), NoPace())
    calls = sent(company, *(batch("n", f"{n}") for n in range(5)))
    await eventually(lambda: len(orchestrator.puts) == 5)
    orchestrator.gate.set()
    assert await asyncio.gather(*calls) == [[f"{n}"] for n in range(5)]
    assert not company._others


def in_columns(groups: list[tuple[str, list[str]]], *, keyed: bool) -> list[pb.AlikeJobs]:
    return [
        pb.AlikeJobs(
            like=pb.NewJob(namespace="n", spec={"type": kind}),
            inputs=[data.encode() for data in inputs],
            idempotency_keys=[f"{kind}{data}" for data in inputs] if keyed else (),
            request_hashes="".join(f"{kind}{d}" for d in inputs).encode() if keyed else b"",
        )
        for kind, inputs in groups
    ]


async def test_jobs_with_keys_in_columns_travel_apart() -> None:
    orchestrator = Orchestrator()
    orchestrator.gate.set()
    company = Company(orchestrator.put, Tasks(), LoudPace(seconds=0.01))
    columns = pb.PutJobsRequest(keyed=in_columns([("x", ["1"])], keyed=True))
    for one in columns.keyed:
        one.like.namespace = "loud"
    calls = sent(company, batch("loud", "a"), columns, batch("loud", "b"), columns)
    assert await asyncio.gather(*calls) == [["a"], ["x 1"], ["b"], ["x 1"]]
    assert sorted(orchestrator.puts) == [["a", "b"], ["x 1", "x 1"]]
    assert not company._keyed
    assert not company._others


kinds = st.lists(
    st.tuples(st.sampled_from(["x", "y", "z"]), st.lists(st.text("12", max_size=2), min_size=1)),
    max_size=3,
)
keyed_requests = st.builds(
    lambda groups: pb.PutJobsRequest(keyed=in_columns(groups, keyed=True)), kinds
).filter(count_of)
requests = st.builds(
    lambda jobs, groups: pb.PutJobsRequest(
        jobs=[pb.NewJob(namespace="n", idempotency_key=name) for name in jobs],
        groups=in_columns(groups, keyed=False),
    ),
    st.lists(st.sampled_from("abcdef"), max_size=4),
    kinds,
).filter(count_of)


@given(st.lists(requests, min_size=1, max_size=6) | st.lists(keyed_requests, min_size=1))
def test_each_finds_its_own_among_all_and_groups_of_a_kind_are_one(
    given_: list[pb.PutJobsRequest],
) -> None:
    whole, places = joined(given_)
    answers = names_in(whole)
    assert [[answers[place] for place in own] for own in places] == [*map(names_in, given_)]
    assert sorted(place for own in places for place in own) == list(range(count_of(whole)))
    types = [group.like.spec.type for group in (*whole.groups, *whole.keyed)]
    assert len(set(types)) == len(types)


async def test_a_namespace_that_is_stored_with_pauses_is_one_put_after_each() -> None:
    orchestrator = Orchestrator()
    orchestrator.gate.set()
    pace = LoudPace(seconds=0.01)
    company = Company(orchestrator.put, Tasks(), pace)
    loud = sent(company, *(batch("loud", f"{n}a", f"{n}b") for n in range(20)))
    await settle()
    assert orchestrator.puts == []
    assert await asyncio.gather(*loud) == [[f"{n}a", f"{n}b"] for n in range(20)]
    assert len(orchestrator.puts) == 1
    assert pace.gone == ["loud"]


async def test_others_do_not_wait_for_its_pause() -> None:
    orchestrator = Orchestrator()
    orchestrator.gate.set()
    company = Company(orchestrator.put, Tasks(), LoudPace())
    held = sent(company, batch("loud", "a"))
    await settle()
    assert await company.put(batch("quiet", "b")) == ["b"]
    assert not held[0].done()
    held[0].cancel()


async def test_a_full_put_waits_for_no_pause() -> None:
    orchestrator = Orchestrator()
    orchestrator.gate.set()
    company = Company(orchestrator.put, Tasks(), LoudPace())
    hundred = [f"{n}" for n in range(100)]
    assert await asyncio.gather(*sent(company, *[batch("loud", *hundred)] * 5)) == [hundred] * 5
    assert [len(put) for put in orchestrator.puts] == [500]


class Shards:
    """Takes jobs that came one by one."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, int]] = []

    async def put(self, lane: str, jobs: Sequence[Single]) -> list[pb.PutJobResult]:
        self.puts.append((lane, len(jobs)))
        return [pb.PutJobResult() for _ in jobs]


async def test_single_calls_of_such_a_namespace_are_one_put_in_a_lane_of_their_own() -> None:
    shards = Shards()
    singles = Singles(shards.put, Tasks(), LoudPace(seconds=0.01))
    loud = [
        asyncio.create_task(singles.put(Single(pb.NewJob(namespace="loud")))) for _ in range(20)
    ]
    await settle()
    await singles.put(Single(pb.NewJob(namespace="quiet")))
    assert shards.puts == [("", 1)]
    await asyncio.gather(*loud)
    assert shards.puts == [("", 1), ("loud", 20)]
