"""Successes in columns are committed as reports are: the same rows, events and answers."""

from __future__ import annotations

from services.mesh.jobs.model import EventColumns, JobEvent, Payload
from services.mesh.jobs.reports import Checkpointed, ReportOutcome, Started, Succeeded, Successes
from services.mesh.jobs.states import Cause, JobState
from tests.integration.store_rig import new_job, rig_of_test  # noqa: F401

COMMITTED, STALE, NOT_FOUND = ReportOutcome.COMMITTED, ReportOutcome.STALE, ReportOutcome.NOT_FOUND


def said(*jobs, worker="w1", outputs=None, kind="") -> Successes:
    """Successes of jobs, each `(id, fence)`."""
    keys = [job_id.bytes for job_id, _ in jobs]
    fences = [fence for _, fence in jobs]
    return Successes(worker, keys, fences, [1500] * len(jobs), outputs, kind)


def told(columns: list[EventColumns]) -> dict[tuple[bytes, int], tuple]:
    """The events in columns, by job and version."""
    names = ("states", "causes", "times_us", "attempts", "fences", "namespaces", "types", "workers")
    return {
        (part.keys[n], part.versions[n]): tuple(getattr(part, name)[n] for name in names)
        for part in columns
        for n in range(len(part.keys))
    }


def as_told(event: JobEvent) -> tuple:
    time_us = round(event.time.timestamp() * 1_000_000)
    who = (event.attempt, event.fence, event.namespace, event.type, event.worker_id)
    return (event.state, event.cause, time_us, *who)


async def test_columns_commit_results_and_tell_the_events_that_were_written(rig):
    ids = await rig.put(5)
    jobs = [(job.id, job.fence) for job in await rig.claim(limit=5)]
    outputs = [str(n).encode() for n in range(5)]
    answer = await rig.store.report([], [said(*jobs, outputs=outputs, kind="text/plain")])
    assert answer.outcomes == [COMMITTED] * 5
    written = await rig.store.events_after([(job_id, 2) for job_id in ids])
    assert {(e.job_id.bytes, e.version): as_told(e) for e in written} == told(answer.columns)
    stored = {job.id: job for job in await rig.store.get_jobs(ids, payloads=True)}
    for (job_id, _), output in zip(jobs, outputs, strict=True):
        job = stored[job_id]
        assert (job.state, job.version) == (JobState.SUCCEEDED, 4)
        assert job.output == Payload.inline(output, "text/plain")
        assert (job.end_time - job.start_time).total_seconds() < 0.1


async def test_each_of_a_batch_has_its_own_outcome(rig):
    done, stale, running, repeated = [await rig.claimed() for _ in range(4)]
    await rig.say(Started(running.id, running.fence, "w1"))
    await rig.say(Succeeded(repeated.id, repeated.fence, "w1"))
    nobody = new_job().id
    batch = said(
        (stale.id, stale.fence + 1),
        (done.id, done.fence),
        (nobody, 1),
        (running.id, running.fence),
        (repeated.id, repeated.fence),
    )
    answer = await rig.store.report([], [batch])
    assert answer.outcomes == [STALE, COMMITTED, NOT_FOUND, COMMITTED, COMMITTED]
    assert told(answer.columns).keys() == {
        (done.id.bytes, 3),
        (done.id.bytes, 4),
        (running.id.bytes, 4),
    }


async def test_another_workers_success_is_refused(rig):
    job = await rig.claimed()
    answer = await rig.store.report([], [said((job.id, job.fence), worker="w2")])
    assert (answer.outcomes, answer.columns) == ([STALE], [])


async def test_what_comes_from_several_workers_is_one_statement(rig):
    ids = await rig.put(2)
    mine, theirs = (await rig.claim("w1"))[0], (await rig.claim("w2"))[0]
    batches = [said((mine.id, mine.fence)), said((theirs.id, theirs.fence), worker="w2")]
    answer = await rig.store.report([], batches)
    assert answer.outcomes == [COMMITTED] * 2
    ends = (await rig.store.ends([job_id.bytes for job_id in ids])).events
    assert {(e.job_id, e.worker_id) for e in ends} == {(mine.id, "w1"), (theirs.id, "w2")}


async def test_a_start_of_the_same_batch_is_part_of_the_end(rig):
    job = await rig.claimed()
    start = Started(job.id, job.fence, "w1")
    answer = await rig.store.report([start], [said((job.id, job.fence))])
    assert [result.outcome for result in answer.results] == [COMMITTED]
    assert (answer.outcomes, answer.events) == ([COMMITTED], [])


async def test_a_late_commit_is_told_as_one(rig):
    job = await rig.claimed()
    await rig.store.sweep([(job.id, job.fence)])
    answer = await rig.store.report([], [said((job.id, job.fence))])
    (columns,) = answer.columns
    assert (answer.outcomes, columns.causes) == ([COMMITTED], [Cause.LATE_COMMIT])


async def test_checkpoints_are_forgotten_with_the_end(rig):
    job = await rig.claimed()
    await rig.say(Checkpointed(job.id, job.fence, "w1", Payload.inline(b"half", "text/plain")))
    await rig.store.report([], [said((job.id, job.fence))])
    assert rig.sql("SELECT count(*) FROM job_checkpoints") == [(0,)]


async def test_columns_say_when_somebody_waits_for_an_end(rig):
    job = await rig.claimed()
    await rig.store.await_jobs([("n", job.id)])
    answer = await rig.store.report([], [said((job.id, job.fence))])
    assert any(part.awaited for part in answer.columns)


def test_columns_become_reports():
    job = new_job()
    (report,) = said((job.id, 3), outputs=[b"x"], kind="k").reports()
    assert (report.job_id, report.fence, report.output) == (job.id, 3, Payload.inline(b"x", "k"))
