"""What is wrong with a schedule's definition, told by field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from services.mesh.errors import InvalidField
from services.mesh.jobs.cron import Cron, check_expression
from services.mesh.jobs.planning import has_times
from services.mesh.jobs.recurrence import Rule
from services.mesh.jobs.schedules import Definition
from services.mesh.jobs.zones import zone

#: Bounds beyond these are mistakes, and calendars end somewhere.
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
SHORTEST = timedelta(seconds=1)


def check_definition(definition: Definition, now: datetime, path: str = "schedule") -> None:
    """InvalidField names the field and the reason. May take a moment: it looks for a time."""
    check_rules(definition.recurrences, f"{path}.recurrences")
    check_rules(definition.exclusions, f"{path}.exclusions")
    start, end = definition.start_time, definition.end_time
    check_time(start, f"{path}.start_time")
    check_time(end, f"{path}.end_time")
    if end is not None and start is not None and end <= start:
        raise InvalidField(f"{path}.end_time", "must be after start_time")
    if end is not None and end <= now:
        raise InvalidField(f"{path}.end_time", "must be after now")
    if has_times(definition, now):
        return
    if definition.exclusions:
        raise InvalidField(f"{path}.exclusions", "they leave no time to run at")
    bound = " between start_time and end_time" if end is not None else ""
    raise InvalidField(f"{path}.recurrences", f"they name no time{bound}: it would never fire")


def check_time(time: datetime | None, field: str) -> None:
    """InvalidField if it lies where calendars end, or is a mistake."""
    if time is not None and not EARLIEST <= time < LATEST:
        raise InvalidField(field, "must lie between 1970 and 2200")


def same(one: Definition, other: Definition) -> bool:
    """Whether two definitions say the same. A large input is put away anew by each call: then its
    bytes count, not where they lie.
    """
    return _by_content(one) == _by_content(other)


def _by_content(definition: Definition) -> Definition:
    template = definition.template
    ref = template.input.ref
    if ref is None or not ref.sha256:
        return definition
    content = replace(template.input, ref=replace(ref, key=""))
    return replace(definition, template=replace(template, input=content))


def check_rules(rules: Sequence[Rule], path: str) -> None:
    """Each rule by itself."""
    for number, rule in enumerate(rules):
        if isinstance(rule, Cron):
            _check_cron(rule, f"{path}[{number}].cron")
        elif rule.every < SHORTEST:
            field = f"{path}[{number}].interval.every"
            raise InvalidField(field, "must be at least one second")


def _check_cron(rule: Cron, path: str) -> None:
    try:
        check_expression(rule.expression)
    except ValueError as error:
        raise InvalidField(f"{path}.expression", str(error)) from error
    try:
        zone(rule.time_zone)
    except ValueError as error:
        raise InvalidField(f"{path}.time_zone", str(error)) from error
