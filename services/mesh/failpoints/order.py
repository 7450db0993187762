"""What a failpoint is told to do, and how that is written. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, unique

_ORDER = re.compile(r"^([a-z]+)(?::([a-z0-9.]+))?(?:@([1-9][0-9]*)(\+)?)?$")
_SECONDS = re.compile(r"^([0-9]*\.?[0-9]+)(ms|s|m)?$")
_UNITS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0}
#: The word that makes `raise` raise what nobody expects.
DEFECT = "defect"
#: Longer pauses are typing errors.
MOST_SECONDS = 3600.0


@unique
class Action(Enum):
    """What may happen at a place."""

    KILL = "kill"
    PAUSE = "pause"
    DELAY = "delay"
    RAISE = "raise"
    DROP = "drop"


_WORDS = tuple(action.value for action in Action)
#: Those that take a time.
TIMED = frozenset({Action.PAUSE, Action.DELAY})


@dataclass(frozen=True, slots=True)
class Order:
    """One order. `nth`: from which time on; `always`: not only that once."""

    action: Action
    seconds: float = 0.0
    defect: bool = False
    nth: int = 1
    always: bool = False

    def __str__(self) -> str:
        argument = f":{self.seconds:g}s" if self.action in TIMED else ""
        argument = f":{DEFECT}" if self.defect else argument
        which = f"@{self.nth}{'+' if self.always else ''}" if self.nth > 1 or self.always else ""
        return f"{self.action.value}{argument}{which}"


def parse_order(text: str) -> Order:
    """Read `action[:argument][@n]`; ValueError says what is wrong."""
    match = _ORDER.match(text.strip().lower())
    if match is None or match[1] not in _WORDS:
        words = ", ".join(_WORDS)
        raise ValueError(f"{text!r} is no order: expected one of {words}, like pause:10s@2")
    action, argument = Action(match[1]), match[2]
    nth, always = int(match[3] or 1), match[4] is not None
    if action in TIMED:
        return Order(action, seconds=_seconds(action, argument), nth=nth, always=always)
    if argument is not None and (action is not Action.RAISE or argument != DEFECT):
        raise ValueError(f"{action.value} takes no argument {argument!r}")
    return Order(action, defect=argument == DEFECT, nth=nth, always=always)


def _seconds(action: Action, argument: str | None) -> float:
    match = _SECONDS.match(argument or "")
    if match is None:
        raise ValueError(f"{action.value} needs a time, like {action.value}:10s")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > MOST_SECONDS:
        raise ValueError(f"{action.value} for {seconds:g} s: at most {MOST_SECONDS:g} s")
    return seconds
