"""How the Orchestrator answers PutJobs, and what Enqueue reads from it."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.enqueue.adapters.submitting import submitted
from services.mesh.errors import InvalidField, NoHealthyShard
from services.mesh.jobs.alike import Keyed
from services.mesh.jobs.ids import new_job_id
from services.mesh.jobs.states import JobState
from services.mesh.store.answers import PutOutcome, PutResult
from services.orchestrator.app.alike import AlikeOutcome, StoredAlike
from services.orchestrator.app.storing import Stored
from services.orchestrator.convert import keyed_from_proto, put_answer_to_proto

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


def test_jobs_in_columns_are_read_at_their_places_whatever_became_of_each():
    ids = [new_job_id(7, 1_700_000_000_000, RANDOM) for _ in range(6)]
    known = stored("s1", outcome=PutOutcome.EXISTING)
    first = [AlikeOutcome(range(1), StoredAlike("s0", NOW, [ids[0].bytes]))]
    keyed = [
        AlikeOutcome((3, 0), StoredAlike("s2", NOW, [ids[1].bytes, ids[2].bytes], handed=True)),
        AlikeOutcome((4, 1), [NoHealthyShard(), known]),
        AlikeOutcome((2,), StoredAlike("s1", NOW, [ids[3].bytes])),
    ]
    request = pb.PutJobsRequest(brief=True, columns=True)
    read = submitted(put_answer_to_proto((), request, [first, keyed]), 6)
    told = [one if isinstance(one, str) else one.job.id or one.error.reason for one in read]
    known_id = str(known.result.job_id)
    expected = [*map(str, (ids[0], ids[2])), known_id, *map(str, (ids[3], ids[1]))]
    assert told == [*expected, "NO_HEALTHY_SHARD"]


def test_one_shard_that_stored_all_of_them_needs_no_places():
    (job_id,) = [new_job_id(7, 1_700_000_000_000, RANDOM)]
    part = AlikeOutcome(range(1), StoredAlike("s0", NOW, [job_id.bytes]))
    answer = put_answer_to_proto((), pb.PutJobsRequest(columns=True), [[part]])
    assert (list(answer.stored[0].places), submitted(answer, 1)) == ([], [str(job_id)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"idempotency_keys": ["a"]},
        {"request_hashes": b"h" * 32},
        {"request_hashes": b"h" * 63},
        {"inputs": [b"x"] * 3},
    ],
)
def test_keys_that_do_not_fit_their_jobs_are_refused(wrong):
    fits = {"inputs": [b"x"] * 2, "idempotency_keys": ["a", "b"], "request_hashes": b"h" * 64}
    _, inputs, keyed = keyed_from_proto(pb.AlikeJobs(**fits))
    assert (list(inputs), keyed) == ([b"x"] * 2, Keyed(["a", "b"], [b"h" * 32] * 2))
    with pytest.raises(InvalidField, match="a key and a hash for each"):
        keyed_from_proto(pb.AlikeJobs(**fits | wrong))
