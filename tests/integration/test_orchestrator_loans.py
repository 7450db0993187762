"""New jobs on their way into a worker's hands, through a shard that fails at any point of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from services.mesh.errors import OutcomeUnknown, ShardUnavailable
from services.mesh.jobs.alike import Keyed
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.model import NewJob, Payload
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutOutcome
from services.orchestrator.app.storing import Stored
from services.orchestrator.domain.lent import Part
from tests.integration.store_rig import audit
from tests.integration.submission_rig import Submitting, submitting
from tests.integration.submission_rig import draft as draft_of
from tests.unit.orchestrator.loan_fakes import grab

UNKNOWN = OutcomeUnknown("s0")


def draft(**fields):
    return draft_of(type_="t", **fields)


@pytest.fixture(name="stand")
async def stand_of_test(migrated_dsn: str) -> AsyncIterator[Submitting]:
    async with submitting(migrated_dsn) as stand:
        stand.loans.grabbed(grab(), 60.0)
        yield stand
    audit(migrated_dsn)


def sent(stand: Submitting) -> list:
    return [job for _, jobs in stand.hands.sent for job in jobs]


async def row(stand: Submitting, outcome: Stored):
    (found,) = await stand.store.get_jobs([outcome.result.job_id])
    return found


async def test_a_new_job_is_sent_to_the_worker_and_no_scheduler_is_nudged(stand):
    (outcome,) = await stand.put(draft(input=Payload.inline(b"in")))
    assert isinstance(outcome, Stored)
    (dispatch,) = sent(stand)
    found = await row(stand, outcome)
    assert (found.state, found.worker_id) == (JobState.DISPATCHED, "w1")
    assert (dispatch.id, dispatch.fence, dispatch.attempt) == (found.id, found.fence, 1)
    assert (dispatch.input.data, dispatch.dispatch_time) == (b"in", found.dispatch_time)
    assert (stand.heard.nudged, stand.heard.bells) == ([], 1)
    assert stand.hands.stays == [True]


async def test_more_than_there_is_room_for_goes_the_usual_way_until_the_worker_grabs_again(stand):
    for _ in range(6):  # there is room for five
        await stand.put(draft())
    assert (len(sent(stand)), stand.heard.nudged) == (5, [{"t"}])
    stand.loans.grabbed(grab(number=2), 60.0)
    await stand.put(draft())
    assert (len(sent(stand)), len(stand.heard.nudged)) == (6, 1)


async def test_puts_beside_each_other_are_all_handed_out(stand):
    await asyncio.gather(*(stand.put(draft(), draft()) for _ in range(2)))
    assert (len(sent(stand)), stand.heard.nudged) == (4, [])


async def test_jobs_that_are_alike_are_handed_out_together(stand):
    like = NewJob(new_job_id(1, 1, stand.random), "n", "t", Payload.inline(b""))
    await stand.submission.alike.put(like, [b"1", b"2"])
    assert sorted(job.input.data for job in sent(stand)) == [b"1", b"2"]
    assert stand.heard.nudged == []


async def test_of_keyed_jobs_that_are_alike_what_is_new_is_sent(stand):
    await stand.put(draft(key="b"))
    assert await put_keyed(stand, "a", "b", "c") == [
        PutOutcome.CREATED,
        PutOutcome.EXISTING,
        PutOutcome.CREATED,
    ]
    assert sorted(job.input.data for job in sent(stand)[1:]) == [b"a", b"c"]
    assert stand.heard.nudged == []


async def test_one_that_a_scheduler_claimed_after_a_lost_try_is_not_sent_as_well(stand):
    """The first try never came to the shard; the second one stored it for anybody, and a scheduler
    was quicker than the look at the job beside it.
    """
    await stand.put(draft(key="b"))
    stand.store.before["put_keyed_handed"] = [UNKNOWN]
    stand.store.meanwhile["put_keyed_jobs"] = partial(stand.store.claim, "t", "w2", 10)
    assert await put_keyed(stand, "a", "b") == [PutOutcome.CREATED, PutOutcome.EXISTING]
    assert len(sent(stand)) == 1, "only the first one of all"


async def put_keyed(stand: Submitting, *keys: str) -> list[PutOutcome]:
    """Put jobs in columns, whose inputs are their keys."""
    like = NewJob(new_job_id(1, 1, stand.random), "n", "t", Payload.inline(b""))
    keyed = Keyed(keys, [b"same"] * len(keys))
    inputs = [key.encode() for key in keys]
    parts = await stand.submission.alike.put(like, inputs, keyed)
    return [outcome.result.outcome for part in parts for outcome in part.stored]


async def test_of_a_repeated_request_nothing_is_sent(stand):
    (first,) = await stand.put(draft(key="k"))
    stand.loans.grabbed(grab(number=2), 60.0)
    (second,) = await stand.put(draft(key="k"))
    assert first.result.job_id == second.result.job_id
    assert (len(sent(stand)), stand.heard.nudged) == (1, [])
    taken = stand.loans.take([await built(stand)])
    assert taken == Part(grab(number=2), 1), "its room is still there"


async def built(stand: Submitting) -> NewJob:
    return draft().build(new_job_id(1, 1, stand.random))


@pytest.mark.parametrize("statement", ["put_new_handed", "put_handed"])
async def test_what_was_stored_though_its_answer_was_lost_is_sent_all_the_same(stand, statement):
    stand.store.after[statement] = [UNKNOWN]
    key = "k" if statement == "put_handed" else ""
    (outcome,) = await stand.put(draft(key=key))
    found = await row(stand, outcome)
    assert (found.state, found.version) == (JobState.DISPATCHED, 2)
    assert [job.id for job in sent(stand)] == [found.id]
    assert stand.heard.nudged == []


async def test_what_was_not_stored_by_the_first_try_goes_the_usual_way(stand):
    stand.store.before["put_new_handed"] = [UNKNOWN]
    (outcome,) = await stand.put(draft())
    assert (await row(stand, outcome)).state is JobState.SCHEDULED
    assert (sent(stand), stand.heard.nudged) == ([], [{"t"}])


async def test_what_stays_unknown_is_told_so_and_left_to_the_sweep(stand):
    stand.store.after["put_new_handed"] = [UNKNOWN]
    stand.store.before["put_new_jobs"] = [UNKNOWN]
    (outcome,) = await stand.put(draft())
    assert isinstance(outcome, OutcomeUnknown)
    assert sent(stand) == []
    assert await stand.store.inflight_workers() == ["w1"]


async def test_a_shard_that_is_certainly_away_costs_the_worker_nothing(stand):
    stand.store.before["put_new_handed"] = [ShardUnavailable("s0")]
    await stand.put(draft())
    assert sent(stand) == []
    assert stand.loans.take([await built(stand)] * 5) == Part(grab(), 5)


async def test_what_cannot_be_sent_is_taken_back_and_told_to_the_schedulers(stand):
    stand.hands.go_away()
    (outcome,) = await stand.put(draft())
    found = await row(stand, outcome)
    assert (found.state, found.attempt) == (JobState.SCHEDULED, 0)
    assert stand.heard.nudged == [{"t"}]


async def test_a_defect_of_sending_leaves_a_stored_job_to_the_sweep(stand):
    stand.hands.fails = RuntimeError("a defect")
    (outcome,) = await stand.put(draft())
    assert isinstance(outcome, Stored)
    assert (await row(stand, outcome)).state is JobState.DISPATCHED
