"""Flags that say how a job is run: of one job, and of the jobs of a schedule."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jobmesh.cli.options import parse_labels
from jobmesh.cli.retry_options import parse_retry

Timeout = Annotated[str | None, typer.Option(metavar="SPAN", help="How long an attempt may run.")]
StartTimeout = Annotated[
    str | None, typer.Option(metavar="SPAN", help="How long it may wait from due to start.")
]
ProgressTimeout = Annotated[
    str | None, typer.Option(metavar="SPAN", help="The longest silence of its handler.")
]
TotalTimeout = Annotated[
    str | None, typer.Option(metavar="SPAN", help="From due to done, all attempts included.")
]
Priority = Annotated[
    int | None, typer.Option("--priority", "-p", min=0, max=9, help="Higher starts first.")
]
ConcurrencyKey = Annotated[
    str | None, typer.Option(help="Jobs with the same key share the type's limit per key.")
]

#: Said as text that a span is taken back with.
NOTHING = "none"

_SPANS = ("timeout", "start_timeout", "progress_timeout", "total_timeout")
_RETRY = (
    "retries",
    "backoff",
    "retry_delay",
    "retry_waits",
    "retry_jitter",
    "retry_window",
    "retry_on",
    "no_retry_on",
)


def job_options(said: dict[str, Any]) -> dict[str, Any]:
    """What was said of a job, as the client takes it; "none" takes a span back."""
    chosen = {key: said[key] for key in ("priority", "concurrency_key") if said[key] is not None}
    for name in _SPANS:
        if said[name] is not None:
            chosen[name] = None if said[name] == NOTHING else said[name]
    if said["label"]:
        chosen["labels"] = parse_labels(said["label"])
    retry = parse_retry(*(said[key] for key in _RETRY))
    return chosen if retry is None else {**chosen, "retry": retry}
