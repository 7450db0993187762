"""What is told of new jobs when something fails between, or in, the statements that store them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from services.mesh.errors import InvalidField, OutcomeUnknown, ShardUnavailable, StaleEpoch
from services.mesh.jobs.alike import Keyed
from services.mesh.jobs.model import NewJob, Payload
from services.mesh.jobs.retry import RetryPolicy
from services.mesh.jobs.ties import Ties, UniquePolicy
from services.mesh.store.answers import PutOutcome
from services.mesh.store.queries import Query
from services.orchestrator.app.parents import Wish
from services.orchestrator.app.storing import Stored
from services.orchestrator.app.submission import Draft
from tests.integration.store_rig import (  # noqa: F401
    Rig,
    kept,
    purge,
    rig_of_test,
    transaction,
    until,
)
from tests.integration.submission_rig import draft, submitting

CREATED, EXISTING = PutOutcome.CREATED, PutOutcome.EXISTING
AWAY, STALE, UNKNOWN = ShardUnavailable("s0"), StaleEpoch(9), OutcomeUnknown("s0")


def told(outcomes) -> list[PutOutcome | type[Exception]]:
    """Of each job what its submitter hears, in short."""
    return [o.result.outcome if isinstance(o, Stored) else type(o) for o in outcomes]


def jobs_of(rig: Rig) -> list[str]:
    """The types of all that is stored; each test gives every job one of its own."""
    return [row[0] for row in rig.sql("SELECT type FROM jobs ORDER BY type")]


async def test_jobs_whose_answer_was_lost_are_new_and_their_types_are_nudged(rig):
    async with submitting(rig.dsn) as stand:
        stand.store.after["put_new_jobs"] = [OutcomeUnknown("s0")]
        assert told(await stand.put(draft(type_="a"), draft(type_="b"))) == [CREATED] * 2
        assert stand.heard.nudged == [{"a", "b"}]
        assert stand.heard.bells == 1
    assert jobs_of(rig) == ["a", "b"]


async def test_of_tied_jobs_whose_answer_was_lost_the_watchers_are_told(rig):
    wish = Wish("n", Ties(unique_key="u"))
    async with submitting(rig.dsn) as stand:
        stand.store.after["put_tied_jobs"] = [OutcomeUnknown("s0")]
        (outcome,) = await stand.put(draft(wish=wish))
        assert told([outcome]) == [CREATED]
        assert stand.heard.events == [outcome.result.job_id]
        assert stand.heard.nudged == [{"echo"}]


async def test_new_jobs_are_stored_whatever_becomes_of_the_look_at_those_beside_them(rig):
    group = [draft("a", "a"), draft("known", "known"), draft("b", "b")]
    async with submitting(rig.dsn) as stand:
        (known,) = await stand.put(group[1])
        for error in (AWAY, STALE):
            stand.store.before["find_existing"] = [error]
            new = [draft(f"{key}{error.reason}", f"{key}{error.reason}") for key in "ab"]
            stand.heard.nudged.clear()
            # Never as certainly not stored: that would be leave to store them under other keys.
            assert told(await stand.put(new[0], group[1], new[1])) == [
                CREATED,
                OutcomeUnknown,
                CREATED,
            ]
            assert stand.heard.nudged == [{job.type for job in new}]
        again = await stand.put(*group)
        assert told(again) == [CREATED, EXISTING, CREATED]
        assert again[1].result.job_id == known.result.job_id
    assert len(jobs_of(rig)) == 7


async def test_the_same_of_jobs_in_columns(rig):
    like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
    async with submitting(rig.dsn) as stand:
        await stand.put(draft("known"))
        stand.heard.nudged.clear()
        stand.store.before["find_existing"] = [AWAY]
        keyed = Keyed(["a", "known", "b"], [b"same"] * 3)
        (part,) = await stand.submission.alike.put(like, [b""] * 3, keyed)
        assert told(part.stored) == [CREATED, OutcomeUnknown, CREATED]
        assert stand.heard.nudged == [{"echo"}]


@pytest.mark.parametrize("known", [(), ("a",)])
async def test_jobs_in_columns_whose_answer_was_lost_are_new_but_for_those_known(rig, known):
    like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
    async with submitting(rig.dsn) as stand:
        await stand.put(*map(draft, known))
        stand.heard.nudged.clear()
        stand.store.after["put_keyed_jobs"] = [OutcomeUnknown("s0")]
        (part,) = await stand.submission.alike.put(
            like, [b""] * 2, Keyed(["a", "b"], [b"same"] * 2)
        )
        assert told(part.stored) == [EXISTING if known else CREATED, CREATED]
        assert stand.heard.nudged == [{"echo"}]
    assert len(jobs_of(rig)) == 2


async def test_a_known_job_that_could_not_be_looked_at_is_looked_for_once_more(rig):
    async with submitting(rig.dsn) as stand:
        await stand.put(draft("known"))
        stand.store.before["find_existing"] = [AWAY]
        assert told(await stand.put(draft("known"))) == [EXISTING]
        stand.store.before["find_existing"] = [AWAY, AWAY]
        assert told(await stand.put(draft("known"))) == [OutcomeUnknown]


async def test_new_jobs_are_stored_though_no_connection_is_left_to_look_at_others(rig):
    """Somebody else got the only connection between the two statements."""
    one = {"max_connections": 1, "acquire_timeout": 0.5, "lock_timeout": 5.0}
    async with submitting(rig.dsn, **one) as stand:
        await stand.put(draft("known", "known"))
        with transaction(rig.dsn) as held:
            held.execute("SELECT pg_advisory_xact_lock(7)")
            with transaction(rig.dsn) as blocking:
                blocking.execute("LOCK TABLE jobs IN SHARE MODE")
                putting = asyncio.create_task(stand.put(draft("new", "new"), draft("known")))
                waits = "SELECT 1 FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted"
                await until(lambda: rig.sql(waits))
                wait = Query("wait", "SELECT pg_advisory_xact_lock_shared(7)", writes=False)
                other = asyncio.create_task(stand.store._connections.fetch(wait))
                await asyncio.sleep(0)  # it waits for the connection
            assert told(await putting) == [CREATED, OutcomeUnknown]
        await other
    assert jobs_of(rig) == ["known", "new"]


@pytest.mark.parametrize("error", [AWAY, STALE, UNKNOWN])
async def test_new_jobs_are_stored_whatever_becomes_of_a_later_round(rig, error):
    async with submitting(rig.dsn) as stand:
        (old,) = await stand.put(draft("old", "old"))
        await stand.store.cancel([old.result.job_id])
        # What was in the way is purged before it is looked at; storing its key then fails.
        stand.store.meanwhile["put_jobs"] = lambda: purge(rig.store, kept(timedelta(0)))
        stand.store.before["put_jobs"] = [None, error]
        assert told(await stand.put(draft("old", "again"), draft("new", "new"))) == [
            OutcomeUnknown,
            CREATED,
        ]
        assert jobs_of(rig) == ["new"]
        assert told(await stand.put(draft("old", "again"))) == [CREATED]


@pytest.mark.parametrize("error", [AWAY, STALE])
async def test_when_nothing_was_stored_yet_the_failure_is_certain(rig, error):
    async with submitting(rig.dsn) as stand:
        stand.store.before["put_jobs"] = [error]
        assert told(await stand.put(draft("a"), draft("b"))) == [type(error)] * 2
    assert jobs_of(rig) == []


def unique(key: str, policy: UniquePolicy = UniquePolicy.KEEP) -> Wish:
    return Wish("n", Ties(unique_key=key, unique_policy=policy))


@pytest.mark.parametrize("error", [AWAY, UNKNOWN])
@pytest.mark.parametrize("statement", ["find_existing", "key_holders", "replace_job"])
async def test_tied_jobs_are_stored_whatever_becomes_of_those_beside_them(rig, statement, error):
    held = draft(type_="held", wish=unique("held", UniquePolicy.REPLACE))
    async with submitting(rig.dsn) as stand:
        await stand.put(held)
        stand.store.before[statement] = [error]
        new = [draft(type_=key, wish=unique(key)) for key in "az"]
        assert told(await stand.put(new[0], held, new[1])) == [CREATED, OutcomeUnknown, CREATED]
        assert {"a", "z"} in stand.heard.nudged
        assert told(await stand.put(held)) == [PutOutcome.REPLACED]
    assert jobs_of(rig) == ["a", "held", "z"]


async def test_only_those_whose_key_is_never_free_are_told_that_the_shard_is_busy(rig):
    held = draft(type_="held", wish=unique("held"))
    async with submitting(rig.dsn) as stand:
        await stand.put(held)
        stand.store.blind = {"key_holders"}  # as if the holder had ended at each look
        outcomes = await stand.put(draft(type_="new", wish=unique("new")), held)
        assert told(outcomes) == [CREATED, ShardUnavailable]
        assert "is busy" in outcomes[1].message
    assert jobs_of(rig) == ["held", "new"]


async def test_busy_after_a_lost_answer_is_not_certain(rig):
    held = draft(type_="held", wish=unique("held"))
    async with submitting(rig.dsn) as stand:
        await stand.put(held)
        stand.store.blind = {"key_holders"}
        stand.store.after["put_tied_jobs"] = [OutcomeUnknown("s0")]
        assert told(await stand.put(draft(type_="new", wish=unique("new")), held)) == [
            CREATED,
            OutcomeUnknown,
        ]


@pytest.mark.parametrize("ends", [False, True])
async def test_a_job_whose_content_may_have_replaced_another_is_not_stored_as_well(rig, ends):
    """What it replaced may have run by the time somebody asks again; its content would twice."""
    async with submitting(rig.dsn) as stand:
        wish = unique("held", UniquePolicy.REPLACE)
        (held,) = await stand.put(draft(type_="held", wish=wish))
        if ends:
            stand.store.meanwhile["replace_job"] = lambda: rig.store.cancel([held.result.job_id])
        stand.store.after["replace_job"] = [OutcomeUnknown("s0")]
        assert told(await stand.put(draft(type_="held", wish=wish))) == [OutcomeUnknown]
    assert jobs_of(rig) == ["held"]
    assert rig.sql("SELECT version FROM jobs") == [(3 if ends else 2,)]


POISON = RetryPolicy(retryable=frozenset({"a\0b"}))  # jsonb has no such character


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_job_that_the_database_cannot_hold_keeps_no_other_out(rig, keyed):
    def one(number: int, **fields) -> Draft:
        return draft(f"k{number}" if keyed else "", f"t{number}", **fields)

    group = [one(number) for number in range(9)]
    group[3] = one(3, retry=POISON)
    async with submitting(rig.dsn) as stand:
        outcomes = await stand.put(*group)
        assert told(outcomes) == [CREATED] * 3 + [InvalidField] + [CREATED] * 5
        assert "job: the database cannot hold it" in outcomes[3].message
        assert set().union(*stand.heard.nudged) == {d.type for d in group if d is not group[3]}
    assert jobs_of(rig) == [d.type for d in group if d is not group[3]]


async def test_what_fails_while_the_one_at_fault_is_looked_for_is_told_to_its_own_jobs(rig):
    async with submitting(rig.dsn) as stand:
        poison = draft("b", "b", retry=POISON)
        # All four, the first two, each of these, and then the last two.
        stand.store.before["put_jobs"] = [None, None, None, None, AWAY]
        outcomes = await stand.put(draft("a", "a"), poison, draft("c", "c"), draft("d", "d"))
        assert told(outcomes) == [CREATED, InvalidField, ShardUnavailable, ShardUnavailable]
    assert jobs_of(rig) == ["a"]


async def test_of_jobs_in_columns_a_key_that_cannot_be_stored_keeps_no_other_out(rig):
    like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""))
    async with submitting(rig.dsn) as stand:
        keyed = Keyed(["a", "b\0", "c"], [b"same"] * 3)
        (part,) = await stand.submission.alike.put(like, [b"1", b"2", b"3"], keyed)
        assert told(part.stored) == [CREATED, InvalidField, CREATED]
    assert len(jobs_of(rig)) == 2


async def test_jobs_that_are_alike_are_refused_together_and_nobody_is_nudged(rig):
    like = NewJob(UUID(int=0), "n", "echo", Payload.inline(b""), retry=POISON)
    async with submitting(rig.dsn) as stand:
        (part,) = await stand.submission.alike.put(like, [b"1", b"2"])
        assert told(part.stored) == [InvalidField] * 2
        assert stand.heard.nudged == []


@pytest.mark.parametrize("replaces", [False, True])
async def test_a_tied_job_that_the_database_cannot_hold_keeps_no_other_out(rig, replaces):
    """Its content comes into a statement only when the neighbours are stored, if it replaces."""
    poison = draft(type_="p", retry=POISON, wish=unique("p", UniquePolicy.REPLACE))
    async with submitting(rig.dsn) as stand:
        if replaces:
            await stand.put(draft(type_="p", wish=unique("p")))
            stand.heard.events.clear()
        outcomes = await stand.put(
            draft(type_="a", wish=unique("a")), poison, draft(type_="z", wish=unique("z"))
        )
        assert told(outcomes) == [CREATED, InvalidField, CREATED]
        stored = [outcome.result.job_id for outcome in (outcomes[0], outcomes[2])]
        assert sorted(stand.heard.events) == sorted(stored)
    assert jobs_of(rig) == (["a", "p", "z"] if replaces else ["a", "z"])
