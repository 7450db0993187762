"""What people look at: result.json, timeline.html, a timeline per violated job, one line."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.evidence import Evidence
from tests.chaos.job_rules import TERMINAL
from tests.chaos.recovery import Measure, by_second, judge, measure, percentile
from tests.chaos.verdict import Verdict

TEMPLATE = Path(__file__).with_name("timeline_template.html")
_MAX_JOBS = 20


def write_report(folder: Path, evidence: Evidence, verdict: Verdict) -> str:
    """Write everything into the folder of the run; returns the one line."""
    measures = measure(folder, evidence)
    line = summary(evidence, verdict)
    result = {
        "line": line,
        "word": verdict.word,
        "violations": [str(violation) for violation in verdict.violations],
        "invalid": verdict.invalid,
        "faults_by_kind": _by_kind(evidence),
        "recovery": [one.to_json() for one in measures],
    }
    if evidence.plan.get("apart"):
        result["recovery_line"] = judge(measures, evidence.plan["kinds"]).line
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    _write_timeline(folder, evidence, verdict, result)
    for job in list(dict.fromkeys(v.job for v in verdict.violations if v.job))[:_MAX_JOBS]:
        (folder / f"job-{job}.html").write_text(_job_page(evidence, verdict, job))
    return line


def summary(evidence: Evidence, verdict: Verdict) -> str:
    """The one line at the end of a run."""
    fired = [fault for fault in evidence.faults if "error" not in fault]
    counts = " ".join(f"{name}={count}" for name, count in verdict.counts().items())
    return (
        f"chaos: {verdict.word} seed={evidence.plan.get('seed', '?')} jobs={verdict.jobs} "
        f"faults={len(fired)} kinds={len({fault['kind'] for fault in fired})} {counts} "
        f"zombies={verdict.zombies} fenced={verdict.fenced}"
    )


def recovery_table(measures: Sequence[Measure], begin: float = 0.0) -> str:
    """The recovery figures as text; with the worst sample of those that are late."""
    head = f"{'recovery, seconds':50} {'target':>6} {'n':>6} {'p50':>7} {'p99':>7} {'max':>7}"
    lines = [f"{head} {'alone':>6} {'p99':>7}"]
    for one in (line.to_json() for line in measures):
        figures = [one[name] for name in ("target", "count", "p50", "p99", "max", "alone")]
        figures.append(one["alone_p99"] if one["alone"] else "-")
        mark = "" if one["met"] else "  late"
        texts = [
            f"{value:>{width}}" for value, width in zip(figures, (6, 6, 7, 7, 7, 6, 7), strict=True)
        ]
        lines.append(f"{one['name']:50} {' '.join(texts)}{mark}")
        if not one["met_by_all"]:
            lines.append(f"    worst: {_worst(one['worst'][0], begin)}")
    return "\n".join(lines)


def _worst(sample: dict[str, Any], begin: float) -> str:
    beside = ", ".join(sample["beside"]) or "nothing"
    by = f" by {sample['by']}" if sample["by"] else ""
    return f"{sample['seconds']} s{by}, at {sample['at'] - begin:.1f} s, beside {beside}"


def _by_kind(evidence: Evidence) -> dict[str, dict[str, int]]:
    kinds: dict[str, dict[str, int]] = {}
    for fault in evidence.faults:
        kind = kinds.setdefault(fault["kind"], {"fired": 0, "in_flight": 0, "errors": 0})
        kind["errors" if "error" in fault else "fired"] += 1
        kind["in_flight"] += fault["in_flight"] > 0
    return kinds


# --- the picture


def _write_timeline(
    folder: Path, evidence: Evidence, verdict: Verdict, result: dict[str, Any]
) -> None:
    data = {
        **result,
        "plan": {k: v for k, v in evidence.plan.items() if k not in ("faults", "units", "kinds")},
        "begin": begin_of(evidence),
        "lanes": _lanes(evidence),
        "series": _series(evidence),
        "marks": _violation_marks(evidence, verdict),
    }
    text = json.dumps(data).replace("</", "<\\/")
    page = TEMPLATE.read_text().replace("/*DATA*/null", text)
    (folder / "timeline.html").write_text(page)


def begin_of(evidence: Evidence) -> float:
    """When the run began."""
    times = [op["begin"] for op in evidence.history[:1]]
    times += [fault["began"] for fault in evidence.faults]
    return min(times, default=0.0)


def _lanes(evidence: Evidence) -> list[dict[str, Any]]:
    """Faults by the unit they struck; links under their caller."""
    lanes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for fault in evidence.faults:
        bar = {"kind": fault["kind"], "target": fault["target"], "number": fault["number"]}
        bar |= {"began": fault["began"], "until": fault.get("until", fault["began"])}
        bar |= {"healed": fault.get("healed", fault["began"]), "in_flight": fault["in_flight"]}
        bar |= {"detail": fault["detail"], "error": fault.get("error", "")[-300:]}
        lanes[fault["target"].partition(">")[0]].append(bar)
    return [{"unit": unit, "bars": lanes[unit]} for unit in sorted(lanes, key=_lane_order)]


def _lane_order(unit: str) -> tuple[int, str]:
    roles = ("client", "enqueue", "orchestrator", "shard", "scheduler", "nats", "etcd", "worker")
    places = [place for place, role in enumerate(roles) if unit.startswith(role)]
    return (places[0] if places else len(roles), unit)


def _series(evidence: Evidence) -> dict[str, Any]:
    """What happened in each second."""
    submitted = [op for op in evidence.history if op["op"] == "enqueue"]
    acked = by_second(op["end"] for op in submitted if op["outcome"] == "ok")
    errors = by_second(op["end"] for op in submitted if op["outcome"] != "ok")
    starts = by_second(run.began for runs in evidence.ledger.runs.values() for run in runs.values())
    ended = by_second(
        events[-1].time for events in evidence.events.values() if events[-1].state in TERMINAL
    )
    late = _lateness_by_second(evidence)
    seconds = sorted({*acked, *errors, *starts, *ended})
    span = range(seconds[0], seconds[-1] + 1) if seconds else range(0)
    return {
        "begin": span.start,
        "acked": [acked.get(second, 0) for second in span],
        "errors": [errors.get(second, 0) for second in span],
        "starts": [starts.get(second, 0) for second in span],
        "ended": [ended.get(second, 0) for second in span],
        "p50": [percentile(late.get(second, ()), 0.5) for second in span],
        "p99": [percentile(late.get(second, ()), 0.99) for second in span],
    }


def _lateness_by_second(evidence: Evidence) -> dict[int, list[float]]:
    """By the second in which jobs became due: how late their first attempt began."""
    late: dict[int, list[float]] = defaultdict(list)
    for row in evidence.rows:
        runs = evidence.ledger.of(row.id)
        if runs:
            began = min(run.began for run in runs.values())
            late[int(row.first_due)].append(max(0.0, began - row.first_due))
    return late


def _violation_marks(evidence: Evidence, verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {"at": evidence.events[v.job][-1].time, "text": str(v), "job": v.job}
        for v in verdict.violations
        if evidence.events.get(v.job)
    ]


# --- one job


def _job_page(evidence: Evidence, verdict: Verdict, job: str) -> str:
    """Everything anybody knows about one job, in the order it happened."""
    lines = sorted(_about(evidence, job))
    first = lines[0][0] if lines else 0.0
    rows = "\n".join(
        f"<tr class={source}><td>{at - first:9.3f}<td>{source}<td>{html.escape(text)}"
        for at, source, text in lines
    )
    broken = "\n".join(f"<li>{html.escape(str(v))}" for v in verdict.violations if v.job == job)
    return (
        f"<!doctype html><meta charset=utf-8><title>job {job}</title><style>{_JOB_STYLE}</style>"
        f"<h1>job {job}</h1><ul>{broken}</ul><table>{rows}</table>"
    )


_JOB_STYLE = (
    "body{font:14px/1.5 ui-monospace,monospace;margin:2em;background:#111;color:#ddd}"
    "td{padding:0 1em;white-space:pre}li{color:#f77}"
    ".shard td{color:#8cf}.ledger td{color:#9f9}.fault td{color:#fa7}.client td{color:#fff}"
)


def _about(evidence: Evidence, job: str) -> list[tuple[float, str, str]]:
    found = [
        (op["begin"], "client", f"{op['op']} {op['outcome']} {json.dumps(op)}")
        for op in evidence.history
        if op.get("job") == job
    ]
    found += [(event.time, "shard", str(event)) for event in evidence.events.get(job, [])]
    for run in evidence.ledger.of(job).values():
        found.append((run.began, "ledger", f"dispatch {run.fence} began (pid {run.pid})"))
        if run.ended is not None:
            text = f"dispatch {run.fence} ended: {run.outcome}{', zombie' * run.is_zombie}"
            found.append((run.ended, "ledger", text))
    for line in evidence.watches:
        for told, version, state in line.get("told", ()):
            if told == job:
                text = f"{line['watcher']} heard version {version}, state {state}"
                found.append((line["at"], "watch", text))
    if found:
        found += _faults_between(evidence, min(found)[0] - 5, max(found)[0] + 5)
    return found


def _faults_between(evidence: Evidence, begin: float, end: float) -> list[tuple[float, str, str]]:
    found = []
    for fault in evidence.faults:
        healed = fault.get("healed", fault["began"])
        if fault["began"] < end and healed > begin:
            name = f"{fault['kind']} {fault['target']} {json.dumps(fault['detail'])}"
            found.append((fault["began"], "fault", f"{name} begins"))
            found.append((healed, "fault", f"{name} is healed"))
    return found
