"""What is told of new jobs when something fails between, or in, the statements that store them."""

from __future__ import annotations

from services.mesh.errors import OutcomeUnknown
from services.mesh.jobs.ties import Ties
from services.mesh.store.answers import PutOutcome
from services.orchestrator.app.parents import Wish
from services.orchestrator.app.submission import Stored
from tests.integration.store_rig import Rig, rig_of_test  # noqa: F401
from tests.integration.submission_rig import draft, submitting


def told(outcomes) -> list[PutOutcome | type[Exception]]:
    """Of each job what its submitter hears, in short."""
    return [o.result.outcome if isinstance(o, Stored) else type(o) for o in outcomes]


def jobs_of(rig: Rig) -> list[str]:
    """The types of all that is stored; each test gives every job one of its own."""
    return [row[0] for row in rig.sql("SELECT type FROM jobs ORDER BY type")]


async def test_jobs_whose_answer_was_lost_are_new_and_their_types_are_nudged(rig):
    async with submitting(rig.dsn) as stand:
        stand.store.after["put_new_jobs"] = [OutcomeUnknown("s0")]
        assert told(await stand.put(draft(type_="a"), draft(type_="b"))) == [PutOutcome.CREATED] * 2
        assert stand.heard.nudged == [{"a", "b"}]
        assert stand.heard.bells == 1
    assert jobs_of(rig) == ["a", "b"]


async def test_of_tied_jobs_whose_answer_was_lost_the_watchers_are_told(rig):
    wish = Wish("n", Ties(unique_key="u"))
    async with submitting(rig.dsn) as stand:
        stand.store.after["put_tied_jobs"] = [OutcomeUnknown("s0")]
        (outcome,) = await stand.put(draft(wish=wish))
        assert told([outcome]) == [PutOutcome.CREATED]
        assert stand.heard.events == [outcome.result.job_id]
        assert stand.heard.nudged == [{"echo"}]
