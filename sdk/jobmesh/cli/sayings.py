"""Progress in words and as a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobmesh.model import Progress

BAR_WIDTH = 20


def progress_words(progress: Progress) -> str:
    """`40 % (2 of 5) reading page 2`."""
    message = f" {progress.message}" if progress.message else ""
    if progress.percent is None:
        return f"{_number(progress.done)}{message}"
    share = f"{progress.percent:.0f} %"
    amount = (
        "" if progress.total == 100 else f" ({_number(progress.done)} of {_number(progress.total)})"
    )
    return f"{share}{amount}{message}"


def progress_bar(progress: Progress) -> str:
    """The same with a bar before it, where the total is known."""
    if progress.percent is None:
        return progress_words(progress)
    full = round(BAR_WIDTH * progress.percent / 100)
    return f"{'━' * full}{'╌' * (BAR_WIDTH - full)} {progress_words(progress)}"


def _number(amount: float) -> str:
    """`200,000,000`, `2.5`: no powers of ten, and no more digits than anybody reads."""
    text = f"{amount:,.2f}"
    return text.rstrip("0").rstrip(".")
