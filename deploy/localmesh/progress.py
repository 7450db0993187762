"""What a command tells while it works, one step at a time, without any say in how it looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from localmesh.unit import Kind

Action = Literal["starting", "ready", "kept", "stopping", "stopped", "killed"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened. `seconds` count from the beginning of the command."""

    name: str
    kind: Kind
    action: Action
    seconds: float


Progress = Callable[[Step], None]


def silent(step: Step) -> None:
    """For commands whose steps nobody wants to see."""


class Teller:
    """Stamps steps with the time since the command began."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def tell(self, name: str, kind: Kind, action: Action) -> None:
        self._progress(Step(name, kind, action, self.seconds))
