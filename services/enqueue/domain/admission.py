"""What the contract's rules cannot say about a submission. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from services.mesh.errors import InvalidField, ObjectNotFound

#: Clocks differ: a time that has just passed means now.
PAST_TOLERANCE = timedelta(minutes=1)
FUTURE_LIMIT = timedelta(days=3653)


def check_start(schedule_time: datetime | None, now: datetime) -> None:
    """Refuse a start that lies clearly in the past, or where no calendar is kept."""
    if schedule_time is None:
        return
    if schedule_time < now - PAST_TOLERANCE:
        raise InvalidField(
            "schedule_time", f"lies in the past ({_told(schedule_time)}); leave it unset to run now"
        )
    if schedule_time > now + FUTURE_LIMIT:
        raise InvalidField(
            "schedule_time", f"lies more than ten years ahead ({_told(schedule_time)})"
        )


def check_expiry(expire_time: datetime | None, now: datetime) -> None:
    """Refuse an expiry that has passed already."""
    if expire_time is not None and expire_time <= now - PAST_TOLERANCE:
        raise InvalidField("expire_time", f"has passed already ({_told(expire_time)})")


def check_parents(ids: Sequence[UUID]) -> None:
    """Refuse a job that names a parent twice: which policy would hold?"""
    seen: set[UUID] = set()
    for number, job_id in enumerate(ids):
        if job_id in seen:
            raise InvalidField(f"dependencies[{number}].job_id", f"names job {job_id} again")
        seen.add(job_id)


def check_unique(key: str, *, given: bool, replaces: bool, waits: bool) -> None:
    """Refuse a policy without a key, and one that would have to replace what a job waits for."""
    if given and not key:
        raise InvalidField("unique_policy", "needs a unique_key")
    if replaces and waits:
        raise InvalidField("unique_policy", "REPLACE goes without dependencies")


def check_calendar(field: str, time: datetime | None) -> None:
    """Refuse a time so far off that nothing can be reckoned with it."""
    if time is not None and not 1970 <= time.year <= 9000:
        raise InvalidField(field, f"lies outside the years 1970 to 9000 ({_told(time)})")


def check_owner(key: str, namespace: str) -> None:
    """An object belongs to the namespace its key begins with; others do not exist for a caller."""
    if not key.startswith(f"{namespace}/") or ".." in key.split("/"):
        raise ObjectNotFound(key)


def _told(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
