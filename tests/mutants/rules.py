"""Rules beyond those of the chaos runs' checker, over the same evidence."""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.checker import check
from tests.chaos.evidence import Evidence
from tests.chaos.verdict import Violation, Violations

CLAIMED, RESCUED = 2, 9
#: A scheduler may learn so much later than another that a worker is gone.
SLACK_SECONDS = 3.0


def verdict(evidence: Evidence) -> list[Violation]:
    """Everything that is wrong."""
    return [*check(evidence).violations, *counted(evidence), *really_lost(evidence)]


def counted(evidence: Evidence) -> Violations:
    """I12: an attempt is counted before its handler runs, or one that kills its worker never is."""
    for job, events in evidence.events.items():
        for event in events:
            if event.reason == CLAIMED and event.attempt < 1:
                text = f"dispatch {event.fence} began as attempt {event.attempt}"
                yield Violation("I12", "other", text, job)


def really_lost(evidence: Evidence) -> Violations:
    """Rescue is for lost leases, and whoever lost one takes no more work by that name."""
    rescued: dict[str, float] = {}
    claims: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for job, events in evidence.events.items():
        for event in events:
            if event.worker is None:
                continue
            if event.reason == RESCUED:
                rescued[event.worker] = min(event.time, rescued.get(event.worker, event.time))
            elif event.reason == CLAIMED:
                claims[event.worker].append((event.time, job))
    for worker, since in rescued.items():
        for time, job in claims[worker]:
            if time > since + SLACK_SECONDS:
                text = f"{worker} was rescued from, and takes work {time - since:.1f} s later"
                yield Violation("I22", "other", text, job)
                break
