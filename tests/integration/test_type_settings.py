"""Settings of types through Enqueue, and the jobs that are made under them."""

from __future__ import annotations

import pytest
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import type_settings_pb2

from services.mesh.errors import EtagMismatch, InvalidField
from services.mesh.testing.waiting import eventually
from services.mesh.wire.type_settings import type_settings_from_proto
from tests.integration import test_enqueue
from tests.integration.test_schedules import create, jobs

desk = test_enqueue.desk

RETRY = {"backoff": "BACKOFF_FIXED", "max_attempts": 4, "initial_delay": {"seconds": 2}}


async def put(desk, **fields) -> type_settings_pb2.TypeSettings:
    settings = type_settings_pb2.TypeSettings(**({"type": "echo"} | fields))
    return (await desk.stub.SetTypeSettings(pb.SetTypeSettingsRequest(settings=settings))).settings


async def get(desk, type_: str = "echo") -> type_settings_pb2.TypeSettings:
    return (await desk.stub.GetTypeSettings(pb.GetTypeSettingsRequest(type=type_))).settings


async def test_settings_read_back_as_they_were_set(desk):
    assert not (await get(desk)).etag
    made = await put(
        desk,
        retry_policy=RETRY,
        timeouts={"run": {"seconds": 60}},
        max_running=3,
        max_running_per_key=1,
        retention={"succeeded": {"seconds": 86400}, "failed": {}},
    )
    assert made.etag
    assert await get(desk) == made
    # What was not said is not there: a type that is not known yet has settings all the same.
    assert (await get(desk, "later")).max_running == 0


async def test_an_etag_guards_against_a_lost_change(desk):
    first = await put(desk, max_running=1)
    second = await put(desk, max_running=2, etag=first.etag)
    for stale in (first.etag, "0", "x", "9" * 50):
        with pytest.raises(EtagMismatch):
            await put(desk, max_running=9, etag=stale)
    assert await get(desk) == second
    assert (await put(desk, max_running=5)).max_running == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Not A Type"},
        {"type": ""},
        {"max_running": -1},
        {"max_running_per_key": 1_000_001},
        {"retention": {"succeeded": {"seconds": -5}}},
        {"retention": {"failed": {"seconds": 400_000_000}}},
        {"retry_policy": {"max_attempts": -1}},
        {"timeouts": {"run": {}}},
        {"etag": "e" * 101},
    ],
)
async def test_garbage_is_refused_and_not_stored(desk, fields):
    with pytest.raises(InvalidField):
        await put(desk, **fields)
    assert not (await get(desk)).etag


async def test_a_job_that_says_nothing_gets_the_defaults_of_its_type(desk):
    before = (await desk.enqueue()).job
    await put(desk, retry_policy=RETRY, timeouts={"run": {"seconds": 60}, "start": {"seconds": 90}})
    job = await desk.get((await desk.enqueue()).job.id)
    assert job.spec.retry_policy.max_attempts == 4
    assert (job.spec.timeouts.run.seconds, job.spec.timeouts.start.seconds) == (60, 90)
    assert job.spec.HasField("expire_time")
    batch = pb.EnqueueBatchRequest(items=[pb.EnqueueItem(job={"type": "echo"})])
    (result,) = (await desk.stub.EnqueueBatch(batch)).results
    assert (await desk.get(result.job_id)).spec.retry_policy.max_attempts == 4
    # They hold for jobs that are made afterwards.
    assert not (await desk.get(before.id)).spec.HasField("retry_policy")


async def test_what_a_job_says_itself_holds_bound_by_bound(desk):
    await put(desk, retry_policy=RETRY, timeouts={"run": {"seconds": 60}, "start": {"seconds": 90}})
    said = await desk.enqueue(
        timeouts={"run": {"seconds": 5}}, retry_policy={"backoff": "BACKOFF_NONE"}
    )
    job = await desk.get(said.job.id)
    assert (job.spec.timeouts.run.seconds, job.spec.timeouts.start.seconds) == (5, 90)
    assert not job.spec.HasField("retry_policy")


async def test_the_same_key_is_the_same_job_whatever_the_defaults_became(desk):
    first = await desk.enqueue(key="k")
    await put(desk, retry_policy=RETRY)
    again = await desk.enqueue(key="k")
    assert again.existing
    assert again.job.id == first.job.id


async def test_jobs_of_schedules_get_the_defaults_of_when_they_are_made(desk):
    await create(desk)
    await put(desk, retry_policy=RETRY, timeouts={"run": {"seconds": 60}})

    async def triggered() -> bool:
        # The Orchestrator learns of the change by its own watch.
        await desk.stub.TriggerSchedule(pb.TriggerScheduleRequest(name="nightly"))
        job = await desk.get((await jobs(desk))[0].id)
        return job.spec.retry_policy.max_attempts == 4 and job.spec.timeouts.run.seconds == 60

    await eventually(triggered)


async def test_schedulers_fire_with_the_defaults_of_the_type(desk):
    settings = await put(desk, retry_policy=RETRY)
    await create(desk, recurrences=[{"interval": {"every": {"seconds": 1}}}])
    for store in desk.mesh.stores.values():
        # As a scheduler's composition does it.
        store._settings_of = {"echo": type_settings_from_proto(settings)}.get

    async def fired() -> bool:
        answers = [await store.fire_due_schedules() for store in desk.mesh.stores.values()]
        return any(answer.fired for answer in answers)

    await eventually(fired)
    job = await desk.get((await jobs(desk))[0].id)
    assert job.spec.retry_policy.max_attempts == 4


# --- what handlers ask for


async def ask(desk, attempts: int = 4, **beside) -> None:
    """Write what a worker would, and wait until Enqueue goes by it."""
    asked = type_settings_pb2.TypeSettings(handler_retry_policy=RETRY | {"max_attempts": attempts})
    asked.MergeFrom(type_settings_pb2.TypeSettings(**beside))
    await desk.registry.put(desk.keys.type_settings + "echo", asked.SerializeToString())

    async def holds() -> bool:
        return await attempts_of_a_job(desk) == attempts

    await eventually(holds)


async def attempts_of_a_job(desk, **fields) -> int:
    """How many a job that says this has; a single one is not told."""
    spec = (await desk.get((await desk.enqueue(**fields)).job.id)).spec
    return spec.retry_policy.max_attempts or 1


async def test_the_handlers_word_holds_below_the_jobs_and_the_operators(desk):
    await ask(desk)
    assert await attempts_of_a_job(desk, retry_policy={"backoff": "BACKOFF_NONE"}) == 1
    assert await attempts_of_a_job(desk, retry_policy={"max_attempts": 2}) == 2
    await put(desk, retry_policy={"max_attempts": 3})
    assert await attempts_of_a_job(desk) == 3
    await put(desk, retry_policy={"backoff": "BACKOFF_NONE"})
    assert await attempts_of_a_job(desk) == 1
    await put(desk)
    assert await attempts_of_a_job(desk) == 4


async def test_setting_a_type_leaves_the_handlers_word_as_it_is(desk):
    await ask(desk, max_running=7)
    read = await get(desk)
    assert (read.handler_retry_policy.max_attempts, read.max_running) == (4, 7)
    for theirs in (None, {"max_attempts": 99}):
        for guarded in (False, True):
            etag = (await get(desk)).etag if guarded else ""
            made = await put(desk, max_running=2, etag=etag, handler_retry_policy=theirs)
            assert (made.handler_retry_policy.max_attempts, made.max_running) == (4, 2)
            assert await get(desk) == made


async def test_a_word_of_nobody_is_not_made_up_by_setting_a_type(desk):
    made = await put(desk, max_running=2, handler_retry_policy={"max_attempts": 99})
    assert not made.HasField("handler_retry_policy")
    await desk.registry.put(desk.keys.type_settings + "echo", b"\xff\xff")
    assert not (await put(desk, max_running=3)).HasField("handler_retry_policy")


async def test_jobs_of_schedules_go_by_the_handlers_word_too(desk):
    await create(desk)
    await ask(desk)

    async def triggered() -> bool:
        await desk.stub.TriggerSchedule(pb.TriggerScheduleRequest(name="nightly"))
        job = await desk.get((await jobs(desk))[0].id)
        return job.spec.retry_policy.max_attempts == 4

    await eventually(triggered)
