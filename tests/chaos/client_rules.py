"""What clients were told must be so: submissions, cancels, reads, lists, schedules, watches."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.chaos import overlap_rules
from tests.chaos.evidence import Event, Evidence, Row
from tests.chaos.history import CONFLICT, FAIL, OK
from tests.chaos.job_rules import CANCELLED, EXPIRED, PARENT_FAILED, TERMINAL
from tests.chaos.verdict import Violation, Violations

#: A schedule may be so late with a nominal time when it is paused.
SCHEDULE_SLACK_SECONDS = 3.0
#: Calls about one job that is known, and its version with it.
CHANGES = ("get", "cancel", "update", "retry")


def check_submissions(evidence: Evidence) -> Violations:
    """I1, I2: one row for each "ok", none for each "fail", at most one for what is unknown."""
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for op in evidence.history:
        if op["op"] == "enqueue" and "unique" not in op:  # which `unique_rules` look at
            calls[op["ref"]].append(op)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.rows:
        if row.schedule is None and row.origin is None and row.unique is None:
            rows[row.ref].append(row)
    for ref, ops in calls.items():
        yield from _submission(ref, ops, rows.get(ref, []))
    for ref in rows.keys() - calls.keys():
        yield Violation("I1", "twins", f"nobody submitted {ref or 'it'}", rows[ref][0].id)
    yield from _copies(evidence)


def _submission(ref: str, ops: list[dict[str, Any]], rows: list[Row]) -> Violations:
    told = {op["job"] for op in ops if op["outcome"] == OK}
    stored = {row.id for row in rows}
    for job in told - stored:
        yield Violation("I1", "lost", f"{ref} was acknowledged and is in no shard", job)
    if len(told) > 1:
        yield Violation("I2", "twins", f"{ref} was acknowledged as {sorted(told)}", min(told))
    if any(op.get("reason") == CONFLICT for op in ops):
        text = f"{ref} was sent again as it was, and refused as something else"
        yield Violation("I2", "other", text, next(iter(stored), ""))
    if len(rows) > 1:
        where = [(row.id, row.shard) for row in rows]
        yield Violation("I1", "twins", f"{ref} is there {len(rows)} times: {where}", rows[0].id)
    if rows and all(op["outcome"] == FAIL for op in ops):
        text = f"{ref} was refused ({ops[-1].get('error')}), and is stored"
        yield Violation("I1", "twins", text, rows[0].id)
    for row in rows:
        if row.namespace != ops[0]["namespace"]:
            yield Violation("I19", "other", f"{ref} is in namespace {row.namespace}", row.id)
        asked = (ops[0].get("type", row.type), ops[0].get("key", row.key) or None)
        if (row.type, row.key) != asked:
            text = f"{ref} was submitted as {asked}, and is stored as {(row.type, row.key)}"
            yield Violation("I2", "other", text, row.id)


def check_conflicts(evidence: Evidence) -> Violations:
    """I2: another content under the key of a job is refused, with the name of that job."""
    for op in evidence.history:
        if op["op"] != "conflict" or op["outcome"] != OK:
            continue
        if not op["refused"]:
            text = f"something else was accepted under its key, as {op['holder']}"
            yield Violation("I2", "twins", text, op["job"])
        elif op["holder"] != op["job"]:
            text = f"its key was said to be that of {op['holder']}"
            yield Violation("I2", "other", text, op["job"])


def _copies(evidence: Evidence) -> Violations:
    """One job on two shards, or one key with two jobs."""
    places: dict[str, str] = {}
    keys: dict[tuple[str, str], str] = {}
    for row in evidence.rows:
        if row.id in places:
            text = f"it is on {places[row.id]} and on {row.shard}"
            yield Violation("I1", "twins", text, row.id)
        places[row.id] = row.shard
        if row.key is None:
            continue
        other = keys.setdefault((row.namespace, row.key), row.id)
        if other != row.id:
            yield Violation("I2", "twins", f"key {row.key} is also that of {other}", row.id)


def check_cancels(evidence: Evidence) -> Violations:
    """I11: what a cancel was answered is how the job ended; nothing else ends that way."""
    rows = {row.id: row for row in evidence.rows}
    asked = {op["job"] for op in evidence.history if op["op"] == "cancel"}
    asked |= overlap_rules.cancellable(evidence)
    expiring = {op["ref"] for op in evidence.history if op.get("expires")}
    for op in evidence.history:
        if op["op"] == "cancel" and op["outcome"] == OK and op["job"] in rows:
            yield from _cancelled(op, rows[op["job"]])
    for row in rows.values():
        last = evidence.events.get(row.id, [])[-1:]
        is_orphan = bool(last) and last[0].reason == PARENT_FAILED  # which `tie_rules` look at
        if row.state == CANCELLED and row.id not in asked and not is_orphan:
            yield Violation("I11", "lost", "CANCELLED, and nobody asked for it", row.id)
        if row.state == EXPIRED and row.ref not in expiring:
            yield Violation("I11", "lost", "EXPIRED without an expire time", row.id)


def _cancelled(op: Mapping[str, Any], row: Row) -> Violations:
    if op["cancelled"] and row.state != CANCELLED:
        text = f"it was cancelled, they said; it ended in state {row.state}"
        yield Violation("I11", "double", text, row.id)
    if not op["cancelled"] and op["state"] != row.state:
        text = f"it had ended in state {op['state']}, they said; now it is in {row.state}"
        yield Violation("I11", "double", text, row.id)


def check_reads(evidence: Evidence) -> Violations:
    """I17, I18: a client finds what it stored, never an older version, and whole lists."""
    seen: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    lots: dict[str, set[str]] = defaultdict(set)
    places = _places(evidence)
    for op in evidence.history:
        if _is_lost(op):
            yield Violation("I17", "lost", "an acknowledged job was NOT_FOUND", op["job"])
        elif op["op"] in CHANGES and op["outcome"] == OK and "version" in op:
            known = seen[op["client"], op["job"]]
            yield from _older(op, known)
            known.append((op.get("end", 0.0), op["version"]))
        elif op["op"] == "enqueue" and op["outcome"] == OK:
            lots[op["lot"]].add(op["job"])
        elif op["op"] == "list" and op["outcome"] == OK:
            yield from _listed(op, lots[op["lot"]], places)


def _older(op: Mapping[str, Any], known: list[tuple[float, int]]) -> Violations:
    """A version older than one that was told before it was asked for: a client may do several
    things at once.
    """
    begin = op.get("begin", math.inf)
    newest = max((version for end, version in known if end <= begin), default=1)
    if op["version"] < newest:
        yield Violation("I17", "gaps", f"version {op['version']} after {newest}", op["job"])


def _is_lost(op: Mapping[str, Any]) -> bool:
    if op["op"] in ("get", "cancel"):
        return bool(op["outcome"] == FAIL)
    return op["op"] in CHANGES and op.get("reason") == "JOB_NOT_FOUND"


def _places(evidence: Evidence) -> dict[str, tuple[str, str]]:
    """In which namespace and lot each stored job belongs."""
    orders = {op["ref"]: op for op in evidence.history if op["op"] == "enqueue"}
    found = ((row, orders.get(row.ref)) for row in evidence.rows if row.schedule is None)
    return {row.id: (row.namespace, order["lot"]) for row, order in found if order is not None}


def _listed(
    op: Mapping[str, Any], wanted: set[str], places: Mapping[str, tuple[str, str]]
) -> Violations:
    """All of them, if it says so; none of them twice, and nobody else's."""
    if not op["partial"]:
        for job in wanted - set(op["jobs"]):
            yield Violation("I18", "gaps", f"missing from the list of {op['lot']}", job)
    for job, count in Counter(op["jobs"]).items():
        if count > 1:
            yield Violation("I18", "gaps", f"{count} times in the list of {op['lot']}", job)
        namespace, lot = places.get(job, (None, None))
        if namespace != op.get("namespace", namespace):
            text = f"of namespace {namespace}, in a list of {op['namespace']}"
            yield Violation("I19", "other", text, job)
        elif lot != op["lot"]:
            yield Violation("I18", "other", f"in the list of {op['lot']}, which it is not of", job)


def check_schedules(evidence: Evidence) -> Violations:
    """I13: every schedule is there, and every nominal time up to the pause has exactly one job."""
    made: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.rows:
        if row.schedule is not None:
            made[row.schedule].append(row)
    pauses = {op["name"]: op for op in evidence.history if op["op"] == "schedule.pause"}
    yield from _acknowledged_schedules(evidence)
    overlapping = {course.name for course in overlap_rules.courses(evidence)}
    for schedule in evidence.schedules:
        rows = made.pop(schedule["id"], [])
        yield from _strays(schedule, rows, pauses.get(schedule["name"]))
        times = [row.nominal for row in rows if row.nominal is not None]
        name = schedule["name"]
        for time in {time for time in times if times.count(time) > 1} if _doubled(times) else ():
            yield Violation("I13", "twins", f"{name} has {times.count(time)} jobs for {time}")
        if name in overlapping:  # whose times are counted by `overlap_rules`
            continue
        if name in pauses and not schedule["missed"]:
            until = pauses[name]["begin"] - SCHEDULE_SLACK_SECONDS
            wanted = range(math.ceil(schedule["created"]), math.floor(until) + 1)
            missing = sorted(set(wanted) - {round(time) for time in times})
            if missing:
                text = f"{name} has no job for {len(missing)} times, such as {missing[:5]}"
                yield Violation("I13", "lost", text)
        elif schedule["missed"]:
            yield Violation("I13", "lost", f"{name} says it missed {schedule['missed']} times")
    for schedule_id, rows in made.items():
        text = f"{len(rows)} jobs of schedule {schedule_id}, which is in no shard"
        yield Violation("I13", "lost", text, rows[0].id)


def _acknowledged_schedules(evidence: Evidence) -> Violations:
    """One that was created is there once; one that was paused says so."""
    stored = Counter(schedule["name"] for schedule in evidence.schedules)
    for op in evidence.history:
        if op["op"] == "schedule.create" and op.get("outcome") == OK and stored[op["name"]] != 1:
            text = f"{op['name']} was created, and is there {stored[op['name']]} times"
            yield Violation("I13", "twins" if stored[op["name"]] else "lost", text)
    paused = {op["name"] for op in evidence.history if op["op"] == "schedule.pause"}
    for schedule in evidence.schedules:
        if schedule["name"] in paused and not schedule.get("paused", True):
            yield Violation("I13", "other", f"{schedule['name']} was paused, and is not")


def _strays(
    schedule: Mapping[str, Any], rows: list[Row], pause: Mapping[str, Any] | None
) -> Violations:
    """Jobs that no nominal time asks for: before it was there, between two, or after its pause."""
    begin = schedule["created"] - SCHEDULE_SLACK_SECONDS
    end = math.inf if pause is None else pause.get("end", math.inf) + SCHEDULE_SLACK_SECONDS
    for row in rows:
        if row.namespace != schedule.get("namespace", row.namespace):
            text = f"of {schedule['name']}, in namespace {row.namespace}"
            yield Violation("I19", "other", text, row.id)
        time = row.nominal
        if time is None or time != round(time) or not begin <= time <= end:
            text = f"{schedule['name']} has no nominal time {time}"
            yield Violation("I13", "twins", text, row.id)


def _doubled(times: list[float]) -> bool:
    return len(set(times)) != len(times)


def check_watches(evidence: Evidence) -> Violations:
    """I16, I19: every watcher heard each version once, in order, to the end."""
    rows = {row.id: row for row in evidence.rows}
    watchers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in evidence.watches:
        watchers[line["watcher"]].append(line)
    for name, lines in watchers.items():
        yield from _Told(name, lines, rows, evidence.events).violations()


class _Told:
    """What one watcher was told."""

    def __init__(
        self,
        name: str,
        lines: list[dict[str, Any]],
        rows: Mapping[str, Row],
        events: Mapping[str, list[Event]],
    ) -> None:
        self._name = name
        self._rows = rows
        self._events = events
        self._errors = [line["error"] for line in lines if "error" in line]
        self._namespace = lines[0]["namespace"]
        self._ids = lines[0]["jobs"]
        self._live = next((line["at"] for line in lines if line.get("live")), math.inf)
        self._versions: dict[str, list[int]] = defaultdict(list)
        self._states: dict[str, set[tuple[int, int]]] = defaultdict(set)
        for line in lines:
            for job, version, state in line.get("told", ()):
                self._versions[job].append(version)
                self._states[job].add((version, state))

    def violations(self) -> Violations:
        for error in self._errors:
            if error.startswith("token refused"):
                yield self._gap("", error)
        for job, versions in self._versions.items():
            yield from self._sequence(job, versions)
            happened = {(event.version, event.state) for event in self._events.get(job, ())}
            if wrong := sorted(self._states[job] - happened):
                yield self._gap(job, f"was told of versions and states that never were: {wrong}")
        yield from self._ends()

    def _sequence(self, job: str, versions: list[int]) -> Violations:
        expected = list(range(versions[0], versions[0] + len(versions)))
        if versions != expected:
            yield self._gap(job, f"was told versions {versions}")
        row = self._rows.get(job)
        if row is not None and row.namespace != self._namespace:
            text = f"{self._name} was told of a job of {row.namespace}"
            yield Violation("I19", "other", text, job)

    def _ends(self) -> Violations:
        """Who was there from the beginning has heard the beginning; everyone has heard the end."""
        for row in self._watched():
            versions = self._versions.get(row.id, [])
            if not versions or (row.state in TERMINAL and versions[-1] != row.version):
                last = versions[-1] if versions else "nothing"
                yield self._gap(row.id, f"heard {last}, its last version is {row.version}")
            elif not self._ids and versions[0] != 1:
                yield self._gap(row.id, f"began with version {versions[0]}")

    def _watched(self) -> list[Row]:
        if self._ids:
            return [self._rows[job] for job in self._ids if job in self._rows]
        return [
            row
            for row in self._rows.values()
            if row.namespace == self._namespace and row.created > self._live
        ]

    def _gap(self, job: str, text: str) -> Violation:
        return Violation("I16", "gaps", f"watcher {self._name} {text}", job)
