"""Schedule definitions as documents. Fields may be added; readers ignore what they do not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from services.mesh.jobs.cron import DstGap, DstOverlap
from services.mesh.jobs.model import NO_LABELS, ObjectRef, Payload, Timeouts
from services.mesh.jobs.overlap import Overlap
from services.mesh.jobs.recurrence import (
    CatchUp,
    CatchUpPolicy,
    recurrence_from_json,
    recurrence_to_json,
)
from services.mesh.jobs.retry import RetryPolicy
from services.mesh.jobs.schedules import Definition, JobTemplate

_MILLISECOND = timedelta(milliseconds=1)


def definition_to_json(definition: Definition) -> str:
    """The document, without the bytes of an inline input: those have a column of their own."""
    catch_up = definition.catch_up
    return json.dumps(
        {
            "recurrences": [recurrence_to_json(rule) for rule in definition.recurrences],
            "template": _template_to_json(definition.template),
            "catch_up": {
                "mode": int(catch_up.mode),
                "window_ms": catch_up.window // _MILLISECOND,
                "grace_ms": catch_up.grace // _MILLISECOND,
            },
            "start_time": _time_to_json(definition.start_time),
            "end_time": _time_to_json(definition.end_time),
            "max_runs": definition.max_runs,
            "jitter_ms": definition.jitter // _MILLISECOND,
            "exclusions": [recurrence_to_json(rule) for rule in definition.exclusions],
            "overlap": int(definition.overlap),
            "pause_on_failure": definition.pause_on_failure,
            "dst_gap": int(definition.dst_gap),
            "dst_overlap": int(definition.dst_overlap),
        }
    )


def definition_from_json(data: Mapping[str, Any], input_: bytes | None) -> Definition:
    """Read what `definition_to_json` wrote."""
    catch_up = data["catch_up"]
    return Definition(
        recurrences=tuple(recurrence_from_json(rule) for rule in data["recurrences"]),
        template=_template_from_json(data["template"], input_),
        catch_up=CatchUpPolicy(
            CatchUp(catch_up["mode"]),
            catch_up["window_ms"] * _MILLISECOND,
            catch_up["grace_ms"] * _MILLISECOND,
        ),
        start_time=_time_from_json(data["start_time"]),
        end_time=_time_from_json(data["end_time"]),
        max_runs=data["max_runs"],
        jitter=data["jitter_ms"] * _MILLISECOND,
        # Documents of the first version have none of these.
        exclusions=tuple(recurrence_from_json(rule) for rule in data.get("exclusions", ())),
        overlap=Overlap(data.get("overlap", Overlap.ALLOW_ALL)),
        pause_on_failure=data.get("pause_on_failure", False),
        dst_gap=DstGap(data.get("dst_gap", DstGap.RUN_AT_SHIFT)),
        dst_overlap=DstOverlap(data.get("dst_overlap", DstOverlap.ONCE)),
    )


def _template_to_json(template: JobTemplate) -> dict[str, Any]:
    return {
        "type": template.type,
        "priority": template.priority,
        "timeouts": template.timeouts.to_json(),
        "retry": None if template.retry is None else template.retry.to_json(),
        "labels": dict(template.labels),
        "concurrency_key": template.concurrency_key,
        "input_type": template.input.content_type,
        "input_ref": None if template.input.ref is None else template.input.ref.to_json(),
    }


def _template_from_json(data: Mapping[str, Any], input_: bytes | None) -> JobTemplate:
    retry, ref = data["retry"], data["input_ref"]
    content_type = data["input_type"]
    if ref is not None:
        payload = Payload.stored(ObjectRef.from_json(ref), content_type)
    elif input_ is not None:
        payload = Payload.inline(input_, content_type)
    else:
        payload = Payload(content_type)
    return JobTemplate(
        type=data["type"],
        input=payload,
        priority=data["priority"],
        timeouts=Timeouts.from_json(data["timeouts"]),
        retry=None if retry is None else RetryPolicy.from_json(retry),
        labels=data["labels"] or NO_LABELS,
        concurrency_key=data.get("concurrency_key"),
    )


def _time_to_json(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time_from_json(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
