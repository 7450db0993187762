"""The steps of a starting or stopping mesh, as they happen."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from jobmesh.cli.screen import Screen
from jobmesh.times import human

if TYPE_CHECKING:
    from localmesh.progress import Step
    from rich.status import Status
    from rich.text import Text

DONE = ("ready", "kept", "stopped", "killed")


class StepView:
    """Shows each finished step as a line, and on a terminal what is still under way.

    It is the `progress` that localmesh calls.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._pending: dict[str, Step] = {}
        self._began = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._screen.is_live:
            self._status = self._screen.err.status(self)
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, step: Step) -> None:
        if step.action not in DONE:
            self._pending[step.name] = step
            return
        began = self._pending.pop(step.name, step).seconds
        took = human(step.seconds - began) if step.seconds > began else ""
        mark = "✓" if step.action != "killed" else "✗"
        self._screen.note(f"{mark} {step.name:<14} {step.action:<8} {took:>8}".rstrip())

    def __rich__(self) -> Text:
        from rich.text import Text

        # A copy: rich draws in a thread of its own.
        steps = list(self._pending.values())
        action = steps[-1].action if steps else "…"
        names = ", ".join(step.name for step in steps if step.action == action)
        line = Text(f"{action} {names}  ")
        line.append(human(time.monotonic() - self._began), style="dim")
        return line
