"""Edits of schedules: which fields a mask may name, and what it touches."""

from __future__ import annotations

from google.protobuf.field_mask_pb2 import FieldMask
from jobmesh.v1 import schedule_pb2

from services.mesh.errors import InvalidField

CHANGEABLE = (
    "template",
    "recurrences",
    "exclusions",
    "start_time",
    "end_time",
    "max_runs",
    "jitter",
    "overlap_policy",
    "catch_up_policy",
    "catch_up_window",
    "dst_gap_policy",
    "dst_overlap_policy",
    "pause_on_failure",
)


def checked_paths(schedule: schedule_pb2.Schedule, mask: FieldMask) -> frozenset[str]:
    """The paths of an edit; one that is none, or that is not up to the caller, is refused."""
    if not schedule.name:
        raise InvalidField("schedule.name", "name the schedule to change")
    if not mask.paths:
        raise InvalidField("update_mask", f"name what to change: {', '.join(CHANGEABLE)}")
    for path in mask.paths:
        known = FieldMask(paths=[path]).IsValidForDescriptor(schedule.DESCRIPTOR)
        if not known or path.partition(".")[0] not in CHANGEABLE:
            text = f"cannot change {path[:100]!r} of a schedule, only {', '.join(CHANGEABLE)}"
            raise InvalidField("update_mask", text)
    return frozenset(mask.paths)


def touches(paths: frozenset[str], field: str) -> bool:
    """Whether the paths take `field`, all of it or a part, by itself or with what it is in."""
    return any(
        path == field or path.startswith(f"{field}.") or field.startswith(f"{path}.")
        for path in paths
    )
