"""The checker: everything a run left behind, against everything the mesh promises.

    check(Evidence.read(folder)) -> Verdict       `python -m tests.chaos.checker FOLDER` prints it

Invariants by their numbers, and where they are looked at:

    I1  I2   one row per acknowledged submission and key, none per refused one     client_rules
    I3  I4   one end, versions without gap, legal steps, row = last event          job_rules
    I5  I15  fences grow by claims; a dispatch starts once; nothing undispatched   job_rules
    I6-I9    the result, the fenced effect and the output are of one attempt       job_rules
    I10      nothing begins before its time                                        job_rules
    I11      cancels: the answer is the end; nobody else ends so                   client_rules
    I12      failed only when the handler did, or workers kept dying               job_rules
    I13      schedules: one job per nominal time, none missing                     client_rules
    I16 I19  watches without gap or repetition, of one's own namespace             client_rules
    I17 I18  reads see one's own writes; whole lists are whole                     client_rules
    I22      nothing is left open after healing                                    job_rules
    I26      what a row refers to exists                                           job_rules
    I27 I28  no lock is left behind; no process ended by itself                    here
    I30      every planned kind of fault fired while work was in flight            here

Measured and reported, not judged here: I23-I25 (`recovery`). Not observed: I14, I20, I21, I29 (the
load uses no limits, moves no buckets and has no quotas), and what logs say (I28).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.chaos import client_rules, job_rules
from tests.chaos.evidence import Evidence
from tests.chaos.ledger import Run
from tests.chaos.verdict import Verdict, Violation, Violations

CHECKS: tuple[Callable[[Evidence], Violations], ...] = (
    job_rules.check_events,
    job_rules.check_effects,
    job_rules.check_inputs,
    job_rules.check_attempts,
    job_rules.check_final,
    client_rules.check_submissions,
    client_rules.check_cancels,
    client_rules.check_reads,
    client_rules.check_schedules,
    client_rules.check_watches,
)


def check(evidence: Evidence) -> Verdict:
    """All violations, in the order of the checks."""
    violations = [found for rule in CHECKS for found in rule(evidence)]
    violations += _leftovers(evidence)
    zombies = evidence.ledger.zombies
    return Verdict(
        violations=violations,
        invalid=list(_uncovered(evidence)),
        jobs=len(evidence.rows),
        zombies=len(zombies),
        fenced=sum(_is_fenced(evidence, run) for run in zombies),
    )


def _leftovers(evidence: Evidence) -> Violations:
    for key in evidence.locks:
        yield Violation("I27", "other", f"the lock {key} was left behind")
    for unit in evidence.deaths:
        yield Violation("I28", "other", f"{unit} ended, and nobody had killed it")


def _is_fenced(evidence: Evidence, run: Run) -> bool:
    events = evidence.events.get(run.job, [])
    return not any(e.state == job_rules.SUCCEEDED and e.fence == run.fence for e in events)


def _uncovered(evidence: Evidence) -> list[str]:
    """Why the run proves nothing: kinds that did not fire under load, zombies that never were."""
    wanted = Counter(evidence.plan.get("kinds", ()))
    fired = Counter(
        fault["kind"]
        for fault in evidence.faults
        if fault.get("in_flight", 0) > 0 and "error" not in fault
    )
    reasons = [
        f"{kind} fired {fired[kind]} of {count} times while work was in flight"
        for kind, count in wanted.items()
        if not fired[kind]
    ]
    if evidence.plan.get("zombies") and not evidence.ledger.zombies:
        reasons.append("no attempt ever became a zombie")
    return reasons


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
