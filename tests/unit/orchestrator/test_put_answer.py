"""How the Orchestrator answers PutJobs, and what Enqueue reads from it."""

from datetime import UTC, datetime, timedelta
from random import Random

from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.adapters.submitting import submitted
from services.mesh.errors import NoHealthyShard
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutOutcome, PutResult
from services.orchestrator.app.submission import Stored
from services.orchestrator.convert import put_answer_to_proto

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RANDOM = Random(3)


def stored(shard="s0", outcome=PutOutcome.CREATED, due=NOW) -> Stored:
    job_id = new_job_id(7, 1_700_000_000_000, RANDOM)
    return Stored(shard, PutResult(outcome, job_id, JobState.SCHEDULED, 1, due, NOW, due <= NOW))


def outcomes_read(outcomes, **asked) -> list[str]:
    answer = put_answer_to_proto(outcomes, pb.PutJobsRequest(brief=True, **asked))
    read = submitted(answer, len(outcomes))
    return [one if isinstance(one, str) else one.job.id or one.error.reason for one in read]


def test_plain_jobs_come_back_as_one_column():
    outcomes = [stored(), stored()]
    answer = put_answer_to_proto(outcomes, pb.PutJobsRequest(brief=True, columns=True))
    assert (len(answer.results), len(answer.stored), list(answer.stored[0].places)) == (0, 1, [])
    assert submitted(answer, 2) == [str(o.result.job_id) for o in outcomes]


def test_every_outcome_is_read_at_its_place_with_and_without_columns():
    mixed = [
        stored("s1"),
        NoHealthyShard(),
        stored("s0"),
        stored("s0", due=NOW + timedelta(hours=1)),
        stored("s1", outcome=PutOutcome.EXISTING),
        stored("s1"),
    ]
    expected = [
        str(o.result.job_id) if isinstance(o, Stored) else "NO_HEALTHY_SHARD" for o in mixed
    ]
    assert outcomes_read(mixed, columns=True) == expected
    assert outcomes_read(mixed) == expected
