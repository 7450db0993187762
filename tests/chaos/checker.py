"""The checker: everything a run left behind, against everything the mesh promises.

    check(Evidence.read(folder)) -> Verdict       `python -m tests.chaos.checker FOLDER` prints it

Invariants by their numbers, and where they are looked at:

    I1  I2   one row per acknowledged submission and key, none per refused one;    client_rules
             another content under a key is refused
    I3  I4   one end, versions without gap, legal steps, row = last event          job_rules
    I5  I15  fences grow by claims; a dispatch starts once; nothing undispatched   job_rules
    I6-I9    the result, the fenced effect and the output are of one attempt,      job_rules
             which was given its own job's input
    I10      nothing is due, begins or expires before its time                     job_rules
    I11      cancels: the answer is the end; nobody else ends so                   client_rules
    I12      attempts are counted; failed only when the handler did, or workers    job_rules
             kept dying
    I13      schedules are there, with one job per nominal time, none missing      client_rules
    I14      no more handlers of a key or type run at once than its limit allows   limit_rules
             one live job per unique key; who came meanwhile was told so           unique_rules
             one run at a time, where its schedule says so                         overlap_rules
    I16 I19  watches without gap or repetition, of one's own namespace             client_rules
    I17 I18  reads see one's own writes; whole lists are whole                     client_rules
    I22      nothing is left open after healing                                    job_rules
    I26      what a row refers to exists                                           job_rules
    I27 I28  no lock is left behind; no process ended by itself                    here
    I30      every planned kind of fault fired while work was in flight, and had   here
             an effect; every kind of work was done
    I31      nobody is released before all of its parents have ended as it asked;  tie_rules
             who ends because of a parent does as it said, and after it
    I32      a redrive makes one job, none while an earlier one lives              change_rules
             by filter: of all that match, once                                    bulk_rules
    I33      an acknowledged update is in the row, once; one refused is not        change_rules
    I34      who snoozes is run again after its pause, at no cost                  change_rules

Measured and reported, not judged here: I23-I25 (`recovery`). Not observed: I20, I21, I29 (the load
moves no buckets and has no quotas), and what logs say (I28). One by one, with
what each leaves out: docs/chaos.md.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.chaos import (
    bulk_rules,
    change_rules,
    client_rules,
    job_rules,
    limit_rules,
    overlap_rules,
    tie_rules,
    unique_rules,
)
from tests.chaos.evidence import Evidence
from tests.chaos.history import OK
from tests.chaos.ledger import Run
from tests.chaos.verdict import Verdict, Violation, Violations

#: What some faults say of themselves; 0 of it is no fault.
EFFECTS = ("met", "dropped", "repeated", "leases", "rows", "limited")
CHECKS: tuple[Callable[[Evidence], Violations], ...] = (
    job_rules.check_events,
    job_rules.check_effects,
    job_rules.check_inputs,
    job_rules.check_given,
    job_rules.check_times,
    job_rules.check_attempts,
    job_rules.check_final,
    client_rules.check_submissions,
    client_rules.check_conflicts,
    client_rules.check_cancels,
    client_rules.check_reads,
    client_rules.check_schedules,
    client_rules.check_watches,
    tie_rules.check_dependencies,
    change_rules.check_redrives,
    change_rules.check_updates,
    change_rules.check_snoozes,
    bulk_rules.check_bulk,
    limit_rules.check_limits,
    unique_rules.check_unique,
    overlap_rules.check_overlap,
)


def check(evidence: Evidence) -> Verdict:
    """All violations, in the order of the checks."""
    violations = [found for rule in CHECKS for found in rule(evidence)]
    violations += _leftovers(evidence)
    zombies = evidence.ledger.zombies
    return Verdict(
        violations=violations,
        invalid=[reason for look in COVERAGE for reason in look(evidence)],
        jobs=len(evidence.rows),
        zombies=len(zombies),
        fenced=sum(_is_fenced(evidence, run) for run in zombies),
    )


def _leftovers(evidence: Evidence) -> Violations:
    for key in evidence.locks:
        yield Violation("I27", "other", f"the lock {key} was left behind")
    found = {unit for fault in evidence.faults for unit in fault.get("found_dead", ())}
    for fault in evidence.faults:
        found.update(fault.get("detail", {}).get("ended", ()))
    for unit in sorted({*evidence.deaths, *found}):
        yield Violation("I28", "other", f"{unit} ended, and nobody had killed it")
    if evidence.unsettled and all(row.state in job_rules.TERMINAL for row in evidence.rows):
        text = f"{evidence.unsettled} jobs ended later than they may after everything was healed"
        yield Violation("I22", "stuck", text)


def _is_fenced(evidence: Evidence, run: Run) -> bool:
    events = evidence.events.get(run.job, [])
    return not any(e.state == job_rules.SUCCEEDED and e.fence == run.fence for e in events)


def _uncovered(evidence: Evidence) -> list[str]:
    """Why the run proves nothing: kinds that did not fire under load, zombies that never were."""
    wanted = Counter(evidence.plan.get("kinds", ()))
    fired = Counter(
        fault["kind"]
        for fault in evidence.faults
        if fault.get("in_flight", 0) > 0 and "error" not in fault and _did_something(fault)
    )
    reasons = [
        f"{kind} fired {fired[kind]} of {count} times while work was in flight, and had an effect"
        for kind, count in wanted.items()
        if not fired[kind]
    ]
    if evidence.plan.get("zombies") and not evidence.ledger.zombies:
        reasons.append("no attempt ever became a zombie")
    return reasons


def _did_something(fault: Mapping[str, Any]) -> bool:
    """Not one that lost no message, held up nothing that was sent, or locked no row."""
    detail = fault.get("detail", {})
    return all(detail.get(name, 1) for name in EFFECTS)


def _unproven(evidence: Evidence) -> Iterator[str]:
    """Kinds of work that were asked for and never done: rules about them have met nothing."""
    answered: dict[str, bool] = {}
    for op in evidence.history:
        name = f"{op['op']} of {op['kind']}" if "kind" in op else op["op"]
        is_told = op.get("outcome") == OK and not op.get("partial")
        answered[name] = answered.get(name, False) or is_told
    for name, is_answered in answered.items():
        if not is_answered:
            yield f"{name}: none was answered in full"
    runs = [run for runs in evidence.ledger.runs.values() for run in runs.values()]
    if "shards" in evidence.plan and not any(run.input for run in runs):
        yield "no handler told what it was given"
    used = {row.shard for row in evidence.rows}
    if len(used) < evidence.plan.get("shards", 0):
        yield f"only {len(used)} of {evidence.plan['shards']} shards have jobs"
    live = {line["watcher"] for line in evidence.watches if line.get("live")}
    opened = {line["watcher"] for line in evidence.watches if line.get("opened")}
    if "shards" in evidence.plan and not opened:
        yield "nobody watched"
    if opened - live:
        yield f"{len(opened - live)} watchers never were live"


def _unhanded(evidence: Evidence) -> Iterator[str]:
    """Whether jobs were in a worker's hands as they were stored: their first two versions are one
    statement's.
    """
    first = (events[:2] for events in evidence.events.values() if len(events) > 1)
    if evidence.plan.get("handed") and not any(
        one.time == two.time and two.state == job_rules.DISPATCHED for one, two in first
    ):
        yield "no job was handed out as it was stored"


def _unmixed(evidence: Evidence) -> Iterator[str]:
    """Whether all services ran in both versions, if two were to share the mesh."""
    if evidence.plan.get("before") and not evidence.versions:
        yield "nobody wrote down which versions ran"
    for role, versions in sorted(evidence.versions.items()):
        if len(versions) < 2:
            yield f"{role}: every start was of one version"


def _missing(evidence: Evidence) -> list[str]:
    return evidence.missing


#: Why a run proves nothing.
COVERAGE: tuple[Callable[[Evidence], Iterable[str]], ...] = (
    _missing,
    _uncovered,
    _unproven,
    _unhanded,
    _unmixed,
    tie_rules.unproven,
    change_rules.unproven,
    bulk_rules.unproven,
    limit_rules.unproven,
    unique_rules.unproven,
    overlap_rules.unproven,
)


def main() -> int:
    verdict = check(Evidence.read(Path(sys.argv[1])))
    for violation in verdict.violations[:100]:
        print(violation)
    for reason in verdict.invalid:
        print(f"invalid: {reason}")
    counts = " ".join(f"{name}={count}" for name, count in verdict.counts().items())
    print(f"{verdict.word} jobs={verdict.jobs} {counts} zombies={verdict.zombies}")
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main())
