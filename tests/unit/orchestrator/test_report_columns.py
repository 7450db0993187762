"""Reports and verdicts in columns say what a message for each says; versions mix."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.v1 import orchestrator_service_pb2 as pb

from services.mesh.clock import ManualClock
from services.mesh.errors import InvalidField
from services.mesh.jobs import ids, reports
from services.mesh.jobs.model import NO_PAYLOAD, ObjectRef, Payload
from services.mesh.telemetry.tracing import Tracing
from services.orchestrator import convert_reports
from services.orchestrator.app.reports import Verdict
from services.orchestrator.servicer import ReportStream
from services.worker.adapters.reports import GrpcReportStream
from services.worker.convert import answers_from_proto, reports_to_proto
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import (
    Answer,
    Checkpointed,
    HandedBack,
    Progressed,
    Report,
    Snoozed,
    Started,
    Succeeded,
    refused,
)

RANDOM = Random(7)
JOBS = [ids.new_job_id(bucket, 1_700_000_000_000, RANDOM) for bucket in range(8)]
STALE = JOBS[0]
#: The worker's monotonic clock.
NOW = 20_000.0

DRAIN = HandedBack("drain", 0.5)

payloads = st.one_of(
    st.just(NO_PAYLOAD),
    st.builds(Payload.inline, st.binary(max_size=20), st.sampled_from(["", "text/plain", "a/b"])),
    st.builds(Payload, st.just("text/plain")),
    st.builds(Payload.stored, st.just(ObjectRef("out/1", 5, b"x" * 32)), st.just("text/plain")),
)
agos = st.none() | st.floats(0, 10_000)
endings = st.one_of(
    st.builds(Succeeded, payloads),
    st.builds(Snoozed, st.just(2.0)),
    st.just(DRAIN),
    st.just(refused()),
    st.just(Started()),
    st.just(Progressed(1.0, 2.0, "half", 1_700_000_000_000_000)),
    st.just(Checkpointed(Payload.inline(b"here"))),
)


def heard(answer: pb.ReportAttemptsResponse) -> list[tuple[bytes, int, str]]:
    """Each verdict with the key and fence it is about, in order."""
    return [
        (key, fence, verdict.value)
        for verdict, dispatches in answers_from_proto(answer)
        for key, fence in dispatches
    ]


def attempt_of(job: UUID, fence: int = 1, ago: float | None = None) -> Attempt:
    """One whose handler began so many seconds ago; None: it did not."""
    attempt = Attempt(job.bytes, fence, "echo", "default", 1)
    if ago is not None:
        attempt.start_us, attempt.began = 1_700_000_000_000_000, NOW - ago
    return attempt


said = st.builds(
    Report,
    st.builds(attempt_of, st.sampled_from(JOBS), st.integers(1, 3), agos),
    endings,
    st.sampled_from(["", "", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"]),
)


class Rows:
    """Takes what is submitted; the verdicts are the test's to give."""

    def __init__(self, judge=lambda report: Verdict.COMMITTED) -> None:
        self.taken: list[reports.Report] = []
        self._judge = judge

    def submit(self, given: Sequence[reports.Report]):
        self.taken.extend(given)
        verdicts: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        verdicts.set_result([self._judge(report) for report in given])
        return [(list(given), verdicts)] if given else []

    def submit_successes(self, given: reports.Successes):
        ((_, verdicts),) = self.submit(given.reports())
        return [(given, verdicts)]


async def conversed(
    rows: Rows, *requests: pb.ReportAttemptsRequest
) -> list[pb.ReportAttemptsResponse]:
    """All that the servicer answers to a worker that says this and no more."""

    async def wire() -> AsyncIterator[pb.ReportAttemptsRequest]:
        for request in requests:
            yield pb.ReportAttemptsRequest.FromString(request.SerializeToString())

    stream = ReportStream(rows, Tracing())  # type: ignore[arg-type]
    reader = asyncio.create_task(stream.read(wire()))
    answers = [answer async for answer in stream.responses()]
    await reader
    return answers


def hello(*, columns: bool) -> pb.ReportAttemptsRequest:
    return pb.ReportAttemptsRequest(hello=pb.ReportHello(worker_id="w-1", columns=columns))


def by_dispatch(taken: Sequence[reports.Report]) -> dict[tuple[UUID, int], list[reports.Report]]:
    found: dict[tuple[UUID, int], list[reports.Report]] = {}
    for report in taken:
        found.setdefault((report.job_id, report.fence), []).append(report)
    return found


def said_once(told: list[Report]) -> list[Report]:
    """An attempt succeeds once, whatever else is said of it."""
    ends = {(r.attempt.key, r.attempt.fence): r for r in told if isinstance(r.what, Succeeded)}
    return [r for r in told if not isinstance(r.what, Succeeded) or r in ends.values()]


@given(st.lists(said, max_size=30).map(said_once))
def test_both_encodings_say_the_same_of_every_attempt_in_the_same_order(told: list[Report]) -> None:
    seen = []
    for columns in (False, True):
        rows = Rows()
        request = reports_to_proto(told, NOW, columns=columns)
        asyncio.run(_ignored(conversed(rows, hello(columns=columns), request)))
        seen.append(by_dispatch(rows.taken))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("columns", [False, True])
def test_a_report_says_how_long_ago_its_handler_began_when_it_is_sent(columns: bool) -> None:
    told = [Report(attempt_of(JOBS[1], ago=2.0), Succeeded()), Report(attempt_of(JOBS[2]), DRAIN)]
    for waited in (0, 5):  # the orchestrator was away for so long
        rows = Rows()
        request = reports_to_proto(told, NOW + waited, columns=columns)
        asyncio.run(_ignored(conversed(rows, hello(columns=columns), request)))
        began = [r.elapsed for r in rows.taken if r.job_id == JOBS[1]]  # type: ignore[union-attr]
        assert began == [timedelta(seconds=2 + waited)]
        assert [r.elapsed_us for r in request.reports if r.job_id == JOBS[2].bytes] == [0]


def test_a_start_that_is_told_a_moment_later_is_dated() -> None:
    request = reports_to_proto([Report(attempt_of(JOBS[1], ago=0.1), Started())], NOW, columns=True)
    (message,) = request.reports
    start = convert_reports.report_from_proto(message, "w-1")
    assert start == reports.Started(JOBS[1], 1, "w-1", timedelta(milliseconds=100))


async def _ignored(coroutine) -> None:
    await coroutine


@given(
    st.lists(
        st.tuples(st.sampled_from(JOBS), st.integers(1, 5), st.sampled_from(list(Verdict))),
        max_size=30,
    )
)
def test_both_encodings_of_verdicts_are_read_as_the_same_answers_in_order(given_) -> None:
    asked = [reports.Started(job, fence, "w-1") for job, fence, _ in given_]
    verdicts = [verdict for _, _, verdict in given_]
    as_messages, in_columns = (
        heard(
            pb.ReportAttemptsResponse.FromString(
                convert_reports.answer_to_proto(
                    asked, verdicts, columns=columns
                ).SerializeToString()
            )
        )
        for columns in (False, True)
    )
    assert in_columns == as_messages
    assert len(as_messages) == len(given_)


async def test_a_success_in_columns_has_the_verdict_of_its_own_row() -> None:
    rows = Rows(lambda r: Verdict.STALE if r.job_id == STALE else Verdict.COMMITTED)
    told = [Report(attempt_of(job), Succeeded(Payload.inline(b"1", "a/b"))) for job in JOBS]
    request = reports_to_proto(told, NOW, columns=True)
    assert not request.reports
    _, answer = await conversed(rows, hello(columns=True), request)
    verdicts = {key: verdict for key, _, verdict in heard(answer)}
    assert verdicts == {job.bytes: "stale" if job == STALE else "committed" for job in JOBS}


async def test_an_older_worker_hears_verdicts_and_nothing_else() -> None:
    told = [Report(attempt_of(JOBS[1]), Succeeded())]
    request = reports_to_proto(told, NOW, columns=False)
    assert not request.succeeded
    (answer,) = await conversed(Rows(), hello(columns=False), request)
    assert (len(answer.verdicts), len(answer.judged), answer.columns) == (1, 0, False)


async def test_an_entry_that_is_no_job_is_refused_alone() -> None:
    rows = Rows()
    told = [Report(attempt_of(UUID(int=5)), Succeeded()), Report(attempt_of(JOBS[1]), Succeeded())]
    answers = await conversed(rows, hello(columns=True), reports_to_proto(told, NOW, columns=True))
    told_back = [one for answer in answers for one in heard(answer)]
    assert [(key, verdict) for key, _, verdict in told_back] == [
        (UUID(int=5).bytes, "invalid"),
        (JOBS[1].bytes, "committed"),
    ]
    assert [report.job_id for report in rows.taken] == [JOBS[1]]


@pytest.mark.parametrize("column", ["job_ids", "dispatch_nos", "elapsed_us", "outputs"])
async def test_columns_of_different_lengths_are_refused_before_anything_is_taken(column) -> None:
    rows = Rows()
    told = [Report(attempt_of(job), Succeeded(Payload.inline(b"1"))) for job in JOBS]
    request = reports_to_proto(told, NOW, columns=True)
    (columns,) = request.succeeded
    shorten(columns, column)
    with pytest.raises(InvalidField):
        await conversed(rows, hello(columns=True), request)
    assert rows.taken == []


def shorten(columns: pb.SucceededAttempts, name: str) -> None:
    if name == "job_ids":
        columns.job_ids = columns.job_ids[:-1]
    else:
        del getattr(columns, name)[-1:]


class Call:
    """The worker's end of a stream whose other end the test plays."""

    def __init__(self, *responses: pb.ReportAttemptsResponse) -> None:
        self.written: list[pb.ReportAttemptsRequest] = []
        self._responses = responses

    async def write(self, request: pb.ReportAttemptsRequest) -> None:
        self.written.append(request)

    async def __aiter__(self) -> AsyncIterator[pb.ReportAttemptsResponse]:
        for response in self._responses:
            yield response


async def sent_after(*responses: pb.ReportAttemptsResponse) -> pb.ReportAttemptsRequest:
    call = Call(*responses)
    stream = GrpcReportStream(call, ManualClock())
    heard: list[Answer] = [answer async for answers in stream.answers() for answer in answers]
    assert heard == []
    await stream.send([Report(attempt_of(JOBS[1]), Succeeded())])
    return call.written[0]


async def test_nothing_is_put_into_columns_until_the_server_said_that_it_reads_them() -> None:
    to_older = await sent_after()
    assert (len(to_older.reports), len(to_older.succeeded)) == (1, 0)
    to_same = await sent_after(pb.ReportAttemptsResponse(columns=True))
    assert (len(to_same.reports), len(to_same.succeeded)) == (0, 1)
