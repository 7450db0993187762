"""Random histories against one real Postgres, held against a model written down from the rules.

The model below is not the store's code: it says in a few lines what each operation may do to a job.
After each step the answers must be the model's, and at the end the auditor reads the tables.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from services.mesh.jobs.model import Payload
from services.mesh.jobs.reports import Failed, HandedBack, ReportOutcome, Started, Succeeded
from services.mesh.jobs.retry import LOSS_BUDGET, Backoff, Failure, RetryPolicy
from services.mesh.jobs.states import LIVE, TERMINAL, UNSUCCESSFUL, JobState
from services.mesh.jobs.ties import Dependency, ParentFailurePolicy, Ties, open_waits
from services.mesh.jobs.turns import Turn
from services.mesh.store.answers import CancelOutcome, ChangeOutcome, JobChange, RedriveOutcome
from services.mesh.store.base import Int8
from services.mesh.store.floors import MOST_LONG_AGO
from services.mesh.store.postgres import PostgresShard
from services.mesh.store.queries import Queries
from services.mesh.store.settings import StoreSettings
from tests.integration.store_rig import EPOCH, Rig, audit, new_job

S, D, R, B = JobState.SCHEDULED, JobState.DISPATCHED, JobState.RUNNING, JobState.BLOCKED
CANCEL, RUN, FAIL = ParentFailurePolicy.CANCEL, ParentFailurePolicy.RUN, ParentFailurePolicy.FAIL
POLICIES = st.sampled_from(list(ParentFailurePolicy))
WORKERS = st.sampled_from(["w1", "w2"])
# Mostly the right thing, now and then the wrong one: what is refused at once explores nothing.
OWN = st.sampled_from([True, True, True, False])
OLDER = st.sampled_from([0, 0, 0, 1])
PICK = st.integers(0, 99)
COMMITTED, STALE = ReportOutcome.COMMITTED, ReportOutcome.STALE


@dataclass
class Job:
    """What the model knows of a job."""

    id: UUID
    attempts: int
    state: JobState = S
    attempt: int = 0
    losses: int = 0
    fence: int = 0
    worker: str | None = None
    version: int = 1
    said: set[tuple[int, str, str]] = field(default_factory=set)
    """The reports that were committed: (fence, worker, kind)."""
    repeated_by: Job | None = None
    waits: dict[UUID, ParentFailurePolicy] = field(default_factory=dict)
    key: str | None = None

    def step(self, state: JobState, steps: int = 1) -> None:
        self.state = state
        self.version += steps

    def holds(self, fence: int, worker: str) -> bool:
        return self.fence == fence and self.worker == worker and self.state in (D, R)

    def replayed(self, fence: int, worker: str, kind: str) -> bool:
        if kind == "start":
            return any(said[:2] == (fence, worker) for said in self.said)
        return (fence, worker, kind) in self.said


class Histories(RuleBasedStateMachine):
    """Operations in any order."""

    loop: asyncio.AbstractEventLoop
    rig: Rig

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Job] = []

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    @initialize(count=st.integers(1, 3), attempts=st.integers(1, 3))
    def begin(self, count: int, attempts: int) -> None:
        self.put(count, attempts)

    @rule(attempts=st.integers(1, 3))
    def put_job(self, attempts: int) -> None:
        self.put(1, attempts)

    def put(self, count: int, attempts: int) -> None:
        retry = RetryPolicy(Backoff.FIXED, attempts, initial_delay=timedelta(0))
        new = [new_job(retry=retry) for _ in range(count)]
        self.run(self.rig.store.put_jobs(new, EPOCH))
        self.live += [Job(job.id, attempts) for job in new]

    @rule(worker=WORKERS, count=st.integers(1, 3))
    def put_handed(self, worker: str, count: int) -> None:
        """Stored, and in a worker's hands by the same statement."""
        new = [new_job() for _ in range(count)]
        self.run(self.rig.store.put_jobs(new, EPOCH, worker))
        for one in new:
            self.live.append(Job(one.id, 1, D, 1, fence=1, worker=worker, version=2))

    @rule(picks=st.lists(PICK, min_size=1, max_size=3), policy=POLICIES)
    def put_child(self, picks: list[int], policy: ParentFailurePolicy) -> None:
        """As a submitter does it: mark, store, look again, release."""
        ids = {self.pick(pick).id for pick in picks}
        store = self.rig.store
        marked = self.run(store.await_jobs([("n", job_id) for job_id in ids])).values()
        parents = {parent.job_id: parent for parent in marked}
        assert parents.keys() == ids
        dependencies = tuple(Dependency(job_id, policy) for job_id in ids)
        waits = open_waits(dependencies, parents)
        new = new_job(ties=Ties(dependencies, waits))
        self.run(store.put_tied_jobs([new], EPOCH))
        child = Job(new.id, 1, B if waits else S, waits={w.job_id: policy for w in waits})
        self.live.append(child)
        ended = [parent for parent in parents.values() if parent.ended]
        self.run(store.release(ended))
        for parent in ended:
            self.told(parent.job_id, parent.state is JobState.SUCCEEDED)

    @rule()
    def release(self) -> None:
        """As a scheduler does it, until nothing is left to tell."""
        store = self.rig.store
        while parents := self.run(store.take_ended_parents()):
            self.run(store.release(parents))
            self.run(store.forget_ended_parents([parent.job_id for parent in parents]))
        ended = [job for job in self.live if job.state in TERMINAL]
        while ended:
            job = ended.pop()
            ended += self.told(job.id, job.state is JobState.SUCCEEDED)

    def told(self, parent: UUID, succeeded: bool) -> list[Job]:
        """What the end of a parent does to the model; those that it ended."""
        ended = []
        for child in self.live:
            policy = child.waits.pop(parent, None)
            if child.state is not B or policy is None:
                continue
            if not succeeded and policy is not RUN:
                child.step(JobState.FAILED if policy is FAIL else JobState.CANCELLED)
                ended.append(child)
            elif not child.waits:
                child.step(S)
        return ended

    @rule(key=st.sampled_from(["a", "b"]))
    def put_keyed(self, key: str) -> None:
        new = new_job(ties=Ties(unique_key=key))
        result = self.run(self.rig.store.put_tied_jobs([new], EPOCH)).results[0]
        holders = [job.id for job in self.live if job.key == key and job.state in LIVE]
        assert [result.job_id] == (holders or [new.id])
        if not holders:
            self.live.append(Job(new.id, 1, key=key))

    def pick(self, pick: int) -> Job:
        """Mostly a job that somebody holds, and if there is none, one is made and claimed."""
        if pick % 4 and not self.held():
            if not any(job.state is S for job in self.live):
                self.put(1, 1 + pick % 3)
            self.take("w1", 1 + pick % 2)
        pool = self.held() if pick % 4 else self.live
        return pool[pick // 4 % len(pool)]

    def held(self) -> list[Job]:
        return [job for job in self.live if job.state in (D, R)]

    def who(self, job: Job, own: bool) -> str:
        worker = job.worker or "w1"
        return worker if own else {"w1": "w2", "w2": "w1"}[worker]

    @rule()
    def raise_floors(self) -> None:
        """As a keeper does it; what is in flight is then below them."""
        raising = {"deep": True, "everything": False, "most": Int8(MOST_LONG_AGO)}
        for _ in range(2):
            self.run(self.rig.store._fetch("raise_floors", raising))

    @rule(worker=WORKERS, limit=st.integers(1, 4), in_turn=st.booleans())
    def claim(self, worker: str, limit: int, in_turn: bool) -> None:
        self.take(worker, limit, Turn() if in_turn else None)

    def take(self, worker: str, limit: int, turn: Turn | None = None) -> None:
        claimed = self.run(self.rig.store.claim("t", worker, limit, turn=turn)).jobs
        waiting = {job.id: job for job in self.live if job.state is S}
        assert len(claimed) == min(limit, len(waiting))
        for found in claimed:
            job = waiting.pop(found.id)
            job.step(D)
            job.fence, job.attempt, job.worker = job.fence + 1, job.attempt + 1, worker
            assert (found.fence, found.attempt) == (job.fence, job.attempt)

    @rule(pick=PICK, own=OWN, older=OLDER)
    def start(self, pick: int, own: bool, older: int) -> None:
        job = self.pick(pick)
        fence, worker = job.fence - older, self.who(job, own)
        held = job.holds(fence, worker) and job.state is D
        expected = COMMITTED if held or job.replayed(fence, worker, "start") else STALE
        assert self.say(Started(job.id, fence, worker)) is expected
        if held:
            job.step(R)
            job.said.add((fence, worker, "start"))

    @rule(pick=PICK, own=OWN, older=OLDER)
    def succeed(self, pick: int, own: bool, older: int) -> None:
        job = self.pick(pick)
        fence, worker = job.fence - older, self.who(job, own)
        own = job.fence == fence and job.worker == worker and fence > 0
        held = own and job.state in (S, D, R)
        expected = COMMITTED if held or job.replayed(fence, worker, "success") else STALE
        assert self.say(Succeeded(job.id, fence, worker, Payload.inline(b"y"))) is expected
        if held:
            job.step(JobState.SUCCEEDED, 2 if job.state is D else 1)
            job.said.add((fence, worker, "success"))

    @rule(pick=PICK, own=OWN, older=OLDER)
    def fail(self, pick: int, own: bool, older: int) -> None:
        job = self.pick(pick)
        fence, worker = job.fence - older, self.who(job, own)
        held = job.holds(fence, worker)
        expected = COMMITTED if held or job.replayed(fence, worker, "failure") else STALE
        assert self.say(Failed(job.id, fence, worker, Failure("E", ""))) is expected
        if held:
            ended = job.attempt >= job.attempts
            job.step(JobState.FAILED if ended else S, 2 if job.state is D else 1)
            job.worker = None
            job.said.add((fence, worker, "failure"))

    @rule(pick=PICK, own=OWN, older=OLDER)
    def hand_back(self, pick: int, own: bool, older: int) -> None:
        job = self.pick(pick)
        fence, worker = job.fence - older, self.who(job, own)
        held = job.holds(fence, worker)
        expected = COMMITTED if held or job.replayed(fence, worker, "hand back") else STALE
        assert self.say(HandedBack(job.id, fence, worker)) is expected
        if held:
            job.step(S)
            job.worker, job.attempt = None, job.attempt - 1
            job.said.add((fence, worker, "hand back"))

    def say(self, report: Any) -> ReportOutcome:
        return self.run(self.rig.store.report([report])).results[0].outcome

    @rule(pick=PICK, older=OLDER)
    def sweep(self, pick: int, older: int) -> None:
        job = self.pick(pick)
        fence = job.fence - older
        swept = bool(self.run(self.rig.store.sweep([(job.id, fence)])))
        assert swept == (job.state is D and older == 0)
        if swept:
            job.step(S)
            job.attempt -= 1

    @rule(worker=WORKERS)
    def rescue(self, worker: str) -> None:
        events = self.run(self.rig.store.rescue([worker])).events
        held = [job for job in self.held() if job.worker == worker]
        assert {event.job_id for event in events} == {job.id for job in held}
        for job in held:
            free = job.losses < LOSS_BUDGET
            ended = not free and job.attempt >= job.attempts
            job.step(JobState.FAILED if ended else S)
            job.losses += 1
            job.attempt -= int(free)

    @rule(pick=PICK, rarely=st.integers(0, 3))
    def cancel(self, pick: int, rarely: int) -> None:
        if rarely:
            return
        job = self.pick(pick)
        result = self.run(self.rig.store.cancel([job.id])).results[0]
        if job.state in (S, D, R, B):
            assert result.outcome is CancelOutcome.CANCELLED
            assert (result.worker_id is not None) == (job.state in (D, R))
            job.step(JobState.CANCELLED)
        else:
            assert result.outcome is CancelOutcome.ALREADY_TERMINAL
            assert result.state is job.state

    @rule(pick=PICK, own=OWN, priority=st.integers(0, 3))
    def change(self, pick: int, own: bool, priority: int) -> None:
        waiting = [job for job in self.live if job.state in (S, B)]
        job = waiting[pick % len(waiting)] if waiting and pick % 3 else self.pick(pick)
        wish = JobChange(True, None, priority, {"p": str(priority)}, job.version + (not own))
        outcome = self.run(self.rig.store.change(job.id, "n", wish)).outcome
        if job.state not in (S, B):
            assert outcome is ChangeOutcome.FORBIDDEN
        elif not own:
            assert outcome is ChangeOutcome.OTHER_VERSION
        else:
            assert outcome is ChangeOutcome.CHANGED
            job.step(job.state)

    @rule(pick=PICK)
    def redrive(self, pick: int) -> None:
        ended = [job for job in self.live if job.state in UNSUCCESSFUL]
        if not ended and pick % 2:
            ended = [self.pick(pick)]
            if self.run(self.rig.store.cancel([ended[0].id])).events:
                ended[0].step(JobState.CANCELLED)
        job = ended[pick % len(ended)] if ended else self.pick(pick)
        wish = {job.id: new_job().id}
        result = self.run(self.rig.store.redrive(wish, "n", EPOCH)).results[0]
        last = job.repeated_by
        if job.state not in UNSUCCESSFUL:
            assert result.outcome is RedriveOutcome.REFUSED
        elif last is not None and last.state in (S, D, R):
            assert result.outcome is RedriveOutcome.EXISTING
            assert result.redrive_id == last.id
        elif job.key and any(j.key == job.key and j.state in LIVE for j in self.live):
            assert result.outcome is RedriveOutcome.HELD
        else:
            assert result.outcome is RedriveOutcome.CREATED
            assert result.redrive_id == wish[job.id]
            job.repeated_by = Job(wish[job.id], job.attempts, key=job.key)
            self.live.append(job.repeated_by)

    @invariant()
    def the_rows_are_the_models(self) -> None:
        if not self.live:
            return
        records = self.run(self.rig.store.get_jobs([job.id for job in self.live]))
        rows = {r.id: (r.state, r.version, r.fence, r.losses, r.worker_id) for r in records}
        for job in self.live:
            assert rows[job.id] == (job.state, job.version, job.fence, job.losses, job.worker)
            if job.state is not JobState.SUCCEEDED:  # a late commit counts its attempt again
                assert next(r.attempt for r in records if r.id == job.id) == job.attempt

    def teardown(self) -> None:
        if not self.live:
            return
        audit(self.rig.dsn)
        self.rig.sql(
            "TRUNCATE jobs, event_rows, queue, in_flight, commits, job_terms, unique_keys,"
            " blocked, waits, ended_parents"
        )


@contextmanager
def bound(dsn: str, queries: Queries) -> Iterator[type[Histories]]:
    """The machine, bound to one shard that lives through all examples."""
    loop = asyncio.new_event_loop()
    store = PostgresShard("s0", dsn, StoreSettings(max_connections=2))
    store._queries = queries
    loop.run_until_complete(store.migrate())
    loop.run_until_complete(store.open())
    try:
        yield type("BoundHistories", (Histories,), {"loop": loop, "rig": Rig(dsn, store)})
    finally:
        loop.run_until_complete(store.close())
        loop.close()


def test_random_histories_follow_the_rules(shard_dsn: str) -> None:
    with bound(shard_dsn, Queries.load()) as histories:
        run_state_machine_as_test(
            histories,
            settings=settings(
                max_examples=25,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


def wander(histories: type[Histories], random: Random, rounds: int) -> None:
    """The same rules in an order drawn at random: nothing is shrunk, so it is quick."""
    for _ in range(rounds):
        machine = histories()
        machine.put(2, random.randint(1, 3))
        for _ in range(40):
            dice = {"pick": random.randrange(100), "older": random.choice([0, 0, 0, 1])}
            own = {"own": random.random() < 0.75}
            worker = {"worker": random.choice(["w1", "w2"])}
            wanted = {"limit": random.randint(1, 4), "in_turn": random.random() < 0.5}
            name, arguments = random.choice(
                [("claim", worker | wanted), ("rescue", worker)]
                + [(kind, dice | own) for kind in ("start", "succeed", "fail", "hand_back")] * 2
                + [("sweep", dice), ("put_job", {"attempts": random.randint(1, 3)})]
                + [("cancel", {"pick": dice["pick"], "rarely": 0})]
                + [("put_keyed", {"key": random.choice(["a", "b"])}), ("release", {})]
                + [
                    (
                        "put_child",
                        {
                            "picks": [random.randrange(100) for _ in range(random.randint(1, 3))],
                            "policy": random.choice(list(ParentFailurePolicy)),
                        },
                    )
                ]
            )
            getattr(machine, name)(**arguments)
            machine.the_rows_are_the_models()
        machine.teardown()


def test_long_histories_follow_the_rules(shard_dsn: str) -> None:
    seed = int(os.environ.get("SEED", "20261116"))
    print(f"seed {seed}")
    with bound(shard_dsn, Queries.load()) as histories:
        wander(histories, Random(seed), 10)


# A machine nobody has seen fail proves nothing: each of these breaks one guard of one statement.
MUTANTS = {
    "a success without a fence": ("succeed", "j.dispatch_no = r.fence AND ", ""),
    "a success by anybody": ("succeed", " AND j.worker_id = r.worker_id", ""),
    "a success after the end": ("succeed", "j.state IN (1, 2, 3)", "true"),
    "a claim in turn that mints no fence": (
        "claim_in_turn",
        "j.dispatch_no + 1",
        "j.dispatch_no",
    ),
    "an end without a fence": ("settle", "j.dispatch_no = r.fence AND ", ""),
    "a sweep of what runs": ("settle", " AND j.state <= r.source", ""),
    "an attempt never given back": ("settle", "j.attempt - r.refund", "j.attempt"),
    "a claim that mints no fence": ("claim", "j.dispatch_no + 1", "j.dispatch_no"),
    "a cancel after the end": ("cancel", " AND j.state IN (1, 2, 3, 8)", ""),
    "a version that stands still": ("start", "version = j.version + 1", "version = j.version"),
    "a key that is never given back": (
        "cancel",
        "WHERE e.unique_key IS NOT NULL",
        "WHERE false",
    ),
    "an end that nobody is told": (
        "succeed",
        "FROM ended e WHERE e.awaited",
        "FROM ended e WHERE false",
    ),
    "a child that waits for one only": (
        "release",
        "CASE WHEN j.blockers = v.ended",
        "CASE WHEN true",
    ),
    "a child that runs after a failure": ("release", "p.succeeded OR w.policy = 2", "true"),
    "a queue that forgets": (
        "settle",
        "FROM ended e WHERE e.state = 1",
        "FROM ended e WHERE false",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_stores_are_found_out(shard_dsn: str, mutant: str) -> None:
    name, guard, instead = MUTANTS[mutant]
    queries = Queries.load()
    broken = queries[name].sql.replace(guard, instead)
    assert broken != queries[name].sql
    queries.by_name[name] = replace(queries[name], sql=broken)
    with bound(shard_dsn, queries) as histories, pytest.raises(BaseException):  # noqa: B017, PT011
        wander(histories, Random(7), 50)
