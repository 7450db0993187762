"""Metrics, traces and readiness of the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from services.mesh.runtime import Readiness
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Attributes, Span, Tracing
from services.worker.adapters.tallies import Tallies, TypeTally
from services.worker.domain.attempt import Attempt
from services.worker.domain.book import AttemptBook
from services.worker.domain.ending import Ending, Failed, Verdict, outcome_of
from services.worker.ports import Dependencies, RunSpan

STALE_OUTCOME = "stopped"


class AttemptSpan(RunSpan):
    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        return self._span.traceparent

    def end(self, ending: Ending | None) -> None:
        self._span.set("jobmesh.outcome", outcome_of(ending) if ending else STALE_OUTCOME)
        if isinstance(ending, Failed):
            self._span.fail(f"{ending.failure.type}: {ending.failure.message}")
        self._span.end()


class WorkerInstruments:
    """The port `Instruments`: what a worker counts."""

    def __init__(self, metrics: Metrics, tracing: Tracing, book: AttemptBook) -> None:
        self._tracing = tracing
        tallies = Tallies(book.capacity)
        metrics.registry.register(tallies)
        self._types = tallies.by_type
        self._conflicts = metrics.counter("lock_conflicts", "Jobs found locked by another worker.")
        self._fenced = metrics.counter("fenced", "Reports the row refused as stale.", ("type",))
        self._lost = metrics.counter("leases_lost", "Identities lost with their lease.")
        self._book = book
        self._capacity = metrics.gauge("worker_capacity", "Attempts at once.", ("type",))
        self._in_hand = metrics.gauge("worker_in_hand", "Attempts in hand.", ("type",))
        unsettled = metrics.gauge("worker_unsettled", "Attempts that wait for their verdict.")
        unsettled.set_function(lambda: book.unsettled)
        for type_ in book.capacity:
            self._show(type_)

    def serves(self, type_: str) -> None:
        if type_ not in self._types:
            self._types[type_] = TypeTally()
            self._show(type_)

    def _show(self, type_: str) -> None:
        """Read when they are asked for, so that they cost nothing in between."""
        self._capacity.labels(type_).set_function(lambda: self._book.capacity.get(type_, 0))
        self._in_hand.labels(type_).set_function(partial(self._book.in_hand, type_))

    @property
    def finished(self) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for tally in self._types.values():
            total.update(tally.finished)
        return total

    def run_begins(self, attempt: Attempt) -> RunSpan | None:
        if attempt.due_us:
            wait = (attempt.start_us - attempt.due_us) / 1e6
            self._types[attempt.type].wait.observe(wait if wait > 0.0 else 0.0)
        return self._span(attempt) if self._tracing.enabled else None

    def _span(self, attempt: Attempt) -> RunSpan:
        attributes: Attributes = {
            "jobmesh.job_id": str(attempt.job_id),
            "jobmesh.attempt": attempt.number,
        }
        # A child of the submission, so that a job is one trace from its client to its handler.
        span = self._tracing.open_span(
            f"run {attempt.type}", "consumer", parent=attempt.traceparent, attributes=attributes
        )
        return AttemptSpan(span)

    def ended(self, attempt: Attempt, ending: Ending | None, run_seconds: float) -> None:
        tally = self._types.get(attempt.type)
        if tally is not None:
            tally.finish(STALE_OUTCOME if ending is None else outcome_of(ending))
            if attempt.start_us:
                tally.run.observe(run_seconds)

    def verdict(self, attempt: Attempt, verdict: Verdict) -> None:
        if verdict is Verdict.STALE and attempt.type in self._types:
            self._fenced.labels(attempt.type).inc()

    def lock_conflicts(self, count: int) -> None:
        self._conflicts.inc(count)

    def identity_lost(self) -> None:
        self._lost.inc()


class ReadinessDependencies(Dependencies):
    """The port over the process's readiness."""

    def __init__(self, readiness: Readiness) -> None:
        self._lease = readiness.require("lease")
        self._orchestrator = readiness.require("orchestrator")
        self._intake = readiness.require("intake")

    def lease(self, up: bool, why: str = "") -> None:
        self._lease.up() if up else self._lease.down(why)

    def orchestrator(self, up: bool, why: str = "") -> None:
        self._orchestrator.up() if up else self._orchestrator.down(why)

    def intake(self, up: bool, why: str = "") -> None:
        self._intake.up() if up else self._intake.down(why)
