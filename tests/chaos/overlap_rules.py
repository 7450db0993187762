"""Overlap policies: runs of one schedule that were not to meet, and what became of the others.

Whether a run has ended is seen in the transaction that makes the next one, so the next one is
stored after that end. Only who cancels the one before does so when the new one is written: those
are told apart by when the new one was first touched, which is after the commit of both.

Every nominal time made a job, was left out or waits, and the row of the schedule says how many.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tests.chaos.evidence import Evidence, Row
from tests.chaos.job_rules import CANCELLED, EPSILON_SECONDS, TERMINAL
from tests.chaos.verdict import Violation, Violations

SKIP, BUFFER_ONE, BUFFER_ALL, CANCEL_OTHER = "skip", "buffer_one", "buffer_all", "cancel_other"
#: How many times may wait for their turn.
MOST_WAITING: Mapping[str, float] = {
    SKIP: 0,
    BUFFER_ONE: 1,
    BUFFER_ALL: math.inf,
    CANCEL_OTHER: 0,
}
#: How much later than it is dated an end may be seen: its shard may have stood still before the
#: commit, and more than once.
UNSEEN_SECONDS = 30.0


class Course:
    """A schedule with an overlap policy, and its runs in the order in which they were made."""

    def __init__(
        self,
        evidence: Evidence,
        schedule: Mapping[str, Any],
        created: Mapping[str, Any],
        runs: Sequence[Row],
    ) -> None:
        self._evidence = evidence
        self.name: str = schedule["name"]
        self.policy: str = created["overlap"]
        self.every: int = created["every"]
        self.runs = sorted(runs, key=lambda row: (row.created, row.nominal or 0.0))
        self.waiting: list[float] = schedule["waiting"]
        self.missed: int = schedule["missed"]
        self._schedule = schedule

    @property
    def past(self) -> range:
        """Its nominal times up to now: from its creation to the next one."""
        every = self.every
        first = math.ceil(self._schedule["created"] / every) * every
        return range(first, round(self._schedule["next"]), every)

    def since(self, row: Row) -> float:
        """From when on a run was surely there."""
        if self.policy != CANCEL_OTHER:
            return row.created
        events = self._evidence.events.get(row.id, [])
        return events[1].time if len(events) > 1 else math.inf

    def until(self, row: Row) -> float:
        last = self._evidence.events.get(row.id, [])[-1:]
        return last[0].time if last and last[0].state in TERMINAL else math.inf

    def left_out(self) -> list[int]:
        known = {round(row.nominal) for row in self.runs if row.nominal is not None}
        return sorted({*self.past} - known - {round(time) for time in self.waiting})


def courses(evidence: Evidence) -> list[Course]:
    """The schedules that have an overlap policy."""
    created = {
        op["name"]: op
        for op in evidence.history
        if op["op"] == "schedule.create" and op.get("overlap")
    }
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.rows:
        if row.schedule is not None:
            runs[row.schedule].append(row)
    return [
        Course(evidence, schedule, created[schedule["name"]], runs[schedule["id"]])
        for schedule in evidence.schedules
        if schedule["name"] in created
    ]


def cancellable(evidence: Evidence) -> set[str]:
    """Runs that the next ones may cancel."""
    found = (course for course in courses(evidence) if course.policy == CANCEL_OTHER)
    return {row.id for course in found for row in course.runs}


def check_overlap(evidence: Evidence) -> Violations:
    """I14, I13: one run at a time, in order; the times that made none are those that may not."""
    for course in courses(evidence):
        yield from _one_at_a_time(course)
        yield from _in_order(course)
        yield from _accounted(course)
        if course.policy == CANCEL_OTHER:
            yield from _made_way(course)
        else:
            yield from _had_reason(course)


def _one_at_a_time(course: Course) -> Violations:
    last: Row | None = None
    for row in course.runs:
        if last is not None and course.since(row) < course.until(last) - EPSILON_SECONDS:
            text = f"of {course.name} ({course.policy}), made while {last.id} had not ended"
            yield Violation("I14", "other", text, row.id)
        if last is None or course.until(row) > course.until(last):
            last = row


def _in_order(course: Course) -> Violations:
    for row, after in pairwise(course.runs):
        if (after.nominal or 0.0) < (row.nominal or 0.0):
            text = f"of {course.name}, made after that for {row.nominal}, for {after.nominal}"
            yield Violation("I14", "other", text, after.id)


def _accounted(course: Course) -> Violations:
    """As many as have passed. The first may have been reckoned a moment before its creation."""
    name = f"{course.name} ({course.policy})"
    told = len(course.runs) + course.missed + len(course.waiting)
    if not 0 <= told - len(course.past) <= 1:
        text = f"{len(course.past)} times of {name} have passed: it made {len(course.runs)} jobs, "
        text += f"left out {course.missed}, and {len(course.waiting)} wait"
        yield Violation("I13", "lost" if told < len(course.past) else "twins", text)
    if course.policy == BUFFER_ALL and course.missed:
        yield Violation("I14", "lost", f"{name} has left out {course.missed} times")
    if len(course.waiting) > MOST_WAITING[course.policy]:
        yield Violation("I14", "other", f"{len(course.waiting)} times of {name} wait")


def _had_reason(course: Course) -> Violations:
    """Nothing is left out long after the last run has ended."""
    for time in course.left_out():
        if not any(_is_in_the_way(course, row, time) for row in course.runs):
            text = f"{course.name} has left out {time}, and nothing was in its way"
            yield Violation("I14", "lost", text)


def _is_in_the_way(course: Course, row: Row, time: float) -> bool:
    """A run that had not ended; or one for an earlier time, made so late that both had come."""
    if row.created <= time + EPSILON_SECONDS:
        return course.until(row) >= time - UNSEEN_SECONDS
    return (row.nominal or 0.0) < time


def _made_way(course: Course) -> Violations:
    """Who was cancelled, or left out, was so for a later one."""
    newest = max((row.nominal or 0.0 for row in course.runs), default=0.0)
    for time in course.left_out():
        if time > newest:
            text = f"{course.name} has left out {time}, and nothing came after it"
            yield Violation("I14", "lost", text)
    for row, after in pairwise([*course.runs, None]):
        if row is None or row.state != CANCELLED:
            continue
        if after is None or after.created > course.until(row) + EPSILON_SECONDS:
            text = f"of {course.name}, CANCELLED, and nothing had come after it"
            yield Violation("I11", "lost", text, row.id)


def unproven(evidence: Evidence) -> Iterator[str]:
    """Policies that were never asked."""
    for course in courses(evidence):
        late = [(row.nominal or 0.0) + course.every < row.created for row in course.runs]
        has_met = {
            CANCEL_OTHER: any(row.state == CANCELLED for row in course.runs),
            BUFFER_ALL: bool(course.waiting) or any(late),
        }.get(course.policy, course.missed > 0)
        if not has_met:
            yield f"no run of {course.name} ever met another"
