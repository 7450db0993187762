"""Reports: what workers say, coalesced into a few statements.

A batch may hold anything in any order. Starts whose end is in the same batch are dropped: the end
records both. What matches no row is looked up once more, to tell a repeated report (COMMITTED) from
a superseded one (STALE).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeVar, assert_never
from uuid import UUID

from services.mesh.jobs.model import EventColumns, JobEvent
from services.mesh.jobs.record import record
from services.mesh.jobs.reports import (
    Checkpointed,
    Failed,
    HandedBack,
    Progressed,
    Report,
    ReportOutcome,
    ReportResult,
    Started,
    Succeeded,
    Successes,
)
from services.mesh.jobs.states import Cause, JobState
from services.mesh.store.answers import ReportAnswer
from services.mesh.store.arrays import Blobs, Integers, Texts, Uuids, milliseconds
from services.mesh.store.connection import Row
from services.mesh.store.rows import CAUSES, STATES, to_json
from services.mesh.store.sayings import Said, Saying, said_in
from services.mesh.store.settling import (
    Settlement,
    Standing,
    settle_failed,
    settle_handed_back,
    settle_params,
    settled_events,
)
from services.mesh.store.successes import SuccessBatch, committed

R = TypeVar("R", Started, Succeeded, Failed, HandedBack, Progressed, Checkpointed)
Dispatch = tuple[int, int]

# Which events prove that a report of this kind was committed before.
_PROOFS: dict[type[Report], frozenset[Cause]] = {
    Succeeded: frozenset({Cause.SUCCEEDED, Cause.LATE_COMMIT}),
    Failed: frozenset({Cause.RETRY, Cause.FAILED}),
    HandedBack: frozenset({Cause.HANDED_BACK, Cause.SNOOZED}),
}
# What is said in between leaves no event; only its own statement can prove it.
_PROOFS |= {Progressed: frozenset(), Checkpointed: frozenset()}
_PROOFS[Started] = frozenset({Cause.STARTED}).union(*_PROOFS.values())


class Reporting(Saying):
    """Commits what workers report."""

    async def report(
        self, reports: Sequence[Report], successes: Sequence[Successes] = ()
    ) -> ReportAnswer:
        """Commit reports, and successes that came in columns; the answers are in their order."""
        kinds = _by_kind(reports)
        ends = kinds.succeeded.keys() | kinds.failed.keys() | kinds.handed_back.keys()
        if kinds.started:
            ends |= {dispatch for one in successes for dispatch in _dispatches_of(one)}
        starts = [report for key, report in kinds.started.items() if key not in ends]
        events = await self._start(_by_id(starts))
        # Before the ends: an end may be in the same batch, and after it the fence is shut.
        states: dict[Said, JobState] = {}
        await self._store_checkpoints(_by_id(kinds.checkpointed.values()), states)
        progress = await self._note(_by_id(kinds.progressed.values()), states)
        outcomes, columns = await self._succeed_in_columns(successes)
        events += await self._succeed(_by_id(kinds.succeeded.values()))
        events += await self._fail(_by_id(kinds.failed.values()))
        events += await self.settle([settle_handed_back(r) for r in kinds.handed_back.values()])
        results = await self._answers(reports, events, states)
        return ReportAnswer(results, events, progress, outcomes, columns)

    async def settle(self, settlements: Sequence[Settlement]) -> list[JobEvent]:
        """End attempts in any way but success; what has moved on is left alone."""
        if not settlements:
            return []
        failures = {(s.job_id.int, s.fence): s.failure for s in settlements}
        rows = await self._fetch("settle", settle_params(settlements))
        return [
            event for row in rows for event in settled_events(row, failures[row[0].int, row[8]])
        ]

    async def _start(self, reports: Sequence[Started]) -> list[JobEvent]:
        if not reports:
            return []
        params = _dispatches(reports) | {"elapsed": milliseconds([r.elapsed for r in reports])}
        rows = await self._fetch("start", params)
        return [_started_event(reports[row[0] - 1], row) for row in rows]

    async def _succeed(self, reports: Sequence[Succeeded]) -> list[JobEvent]:
        if not reports:
            return []
        params = _dispatches(reports) | {
            "elapsed": milliseconds([r.elapsed for r in reports]),
            "outputs": Blobs([r.output.data for r in reports]),
            "output_types": Texts([r.output.content_type or None for r in reports]),
            "output_refs": Texts([to_json(r.output.ref) for r in reports]),
        }
        rows = await self._fetch("succeed", params)
        await self._forget_checkpoints([reports[row[0] - 1].job_id for row in rows if row[8]])
        return [event for row in rows for event in _succeeded_events(reports[row[0] - 1], row)]

    async def _succeed_in_columns(
        self, successes: Sequence[Successes]
    ) -> tuple[list[ReportOutcome], list[EventColumns]]:
        if not successes:
            return [], []
        batch = SuccessBatch.of(successes)
        done = committed(batch, await self._fetch("succeed_in_columns", batch.params))
        await self._forget_checkpoints([UUID(bytes=key) for key in done.checkpointed])
        outcomes = [ReportOutcome.COMMITTED] * len(batch.keys)
        if len(done.places) < len(batch.keys):
            said = [report for one in successes for report in one.reports()]
            matched = {batch.order[place] for place in done.places}
            unmatched = [place for place in range(len(said)) if place not in matched]
            for place, late in (await self._late_answers(said, unmatched)).items():
                outcomes[place] = late.outcome
        return outcomes, done.events

    async def _fail(self, reports: Sequence[Failed]) -> list[JobEvent]:
        if not reports:
            return []
        rows = await self._fetch("policies", _dispatches(reports))
        standings = [(reports[row[0] - 1], Standing.from_row(row[1:])) for row in rows]
        return await self.settle([settle_failed(r, s, self._random) for r, s in standings])

    async def _answers(
        self,
        reports: Sequence[Report],
        events: Sequence[JobEvent],
        states: Mapping[Said, JobState],
    ) -> list[ReportResult]:
        # Of the events of one dispatch the last one stays, which is its end if there is one.
        last = {(event.job_id.int, event.fence): event for event in events}
        answers: list[ReportResult | None] = []
        for report in reports:
            if isinstance(report, Progressed | Checkpointed):
                state = states.get(said_in(report))
                answers.append(None if state is None else _answer(report, state))
                continue
            event = last.get(_dispatch(report))
            proven = event is not None and event.cause in _PROOFS[type(report)]
            answers.append(_answer(report, event.state) if event and proven else None)
        unmatched = [place for place, answer in enumerate(answers) if answer is None]
        for place, late in (await self._late_answers(reports, unmatched)).items():
            answers[place] = late
        return [answer for answer in answers if answer is not None]

    async def _late_answers(
        self, reports: Sequence[Report], places: Sequence[int]
    ) -> dict[int, ReportResult]:
        if not places:
            return {}
        asked = [reports[place] for place in places]
        answers = {
            place: ReportResult(report.job_id, report.fence, ReportOutcome.NOT_FOUND, None)
            for place, report in zip(places, asked, strict=True)
        }
        for ordinal, state, reasons in await self._fetch("dispatch_history", _dispatches(asked)):
            place = places[ordinal - 1]
            proven = any(CAUSES[r] in _PROOFS[type(reports[place])] for r in reasons)
            outcome = ReportOutcome.COMMITTED if proven else ReportOutcome.STALE
            answers[place] = _answer(reports[place], STATES[state], outcome)
        return answers


@record
class _Kinds:
    """The reports of a batch by kind, one per dispatch."""

    started: dict[Dispatch, Started] = field(default_factory=dict)
    succeeded: dict[Dispatch, Succeeded] = field(default_factory=dict)
    failed: dict[Dispatch, Failed] = field(default_factory=dict)
    handed_back: dict[Dispatch, HandedBack] = field(default_factory=dict)
    progressed: dict[Dispatch, Progressed] = field(default_factory=dict)
    checkpointed: dict[Dispatch, Checkpointed] = field(default_factory=dict)


def _by_kind(reports: Sequence[Report]) -> _Kinds:
    kinds = _Kinds()
    for report in reports:
        match report:
            case Succeeded():
                kinds.succeeded[_dispatch(report)] = report
            case Started():
                kinds.started[_dispatch(report)] = report
            case Failed():
                kinds.failed[_dispatch(report)] = report
            case HandedBack():
                kinds.handed_back[_dispatch(report)] = report
            case Progressed():
                kinds.progressed[_dispatch(report)] = report
            case Checkpointed():
                kinds.checkpointed[_dispatch(report)] = report
            case _:
                assert_never(report)
    return kinds


def _by_id(reports: Iterable[R]) -> list[R]:
    """In the order of ids, so that two batches never lock crosswise."""
    return sorted(reports, key=lambda report: report.job_id.int)


def _dispatch(report: Report) -> Dispatch:
    return report.job_id.int, report.fence


def _dispatches_of(said: Successes) -> Iterable[Dispatch]:
    numbers = (int.from_bytes(key, "big") for key in said.keys)
    return zip(numbers, said.fences, strict=True)


def _answer(
    report: Report, state: JobState, outcome: ReportOutcome = ReportOutcome.COMMITTED
) -> ReportResult:
    return ReportResult(report.job_id, report.fence, outcome, state)


def _dispatches(reports: Sequence[Report]) -> dict[str, object]:
    return {
        "ids": Uuids([r.job_id for r in reports]),
        "fences": Integers([r.fence for r in reports]),
        "workers": Texts([r.worker_id for r in reports]),
    }


def _started_event(report: Started, row: Row) -> JobEvent:
    _, namespace, type_, version, attempt, time = row
    who = (attempt, report.fence, report.worker_id, None, None, None, namespace, type_)
    return JobEvent(report.job_id, version, JobState.RUNNING, Cause.STARTED, time, *who)


def _succeeded_events(report: Succeeded, row: Row) -> list[JobEvent]:
    _, namespace, type_, version, old_state, attempt, began, ended, _, awaited = row
    job_id = report.job_id
    who = (attempt, report.fence, report.worker_id, None, None, None, namespace, type_)
    cause = Cause.LATE_COMMIT if old_state == JobState.SCHEDULED else Cause.SUCCEEDED
    last = JobEvent(job_id, version, JobState.SUCCEEDED, cause, ended, *who, awaited=bool(awaited))
    if old_state != JobState.DISPATCHED:
        return [last]
    return [JobEvent(job_id, version - 1, JobState.RUNNING, Cause.STARTED, began, *who), last]
