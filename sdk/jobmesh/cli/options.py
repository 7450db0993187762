"""Flags that mean the same in every command."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from jobmesh.times import instant, moved, seconds

DEFAULT_NAMESPACE = "default"

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        envvar="JOBMESH_ADDRESS",
        metavar="HOST:PORT",
        help="Where EnqueueService answers.",
        show_default="the local mesh",
    ),
]
ScalerAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        envvar="JOBMESH_SCALER_ADDRESS",
        metavar="HOST:PORT",
        help="Where ScalerService answers.",
        show_default="the local mesh",
    ),
]
OrchestratorAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        envvar="JOBMESH_ORCHESTRATOR_ADDRESS",
        metavar="HOST:PORT",
        help="Where OrchestratorService answers.",
        show_default="the local mesh",
    ),
]
SchedulerAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        envvar="JOBMESH_SCHEDULER_ADDRESS",
        metavar="HOST:PORT",
        help="Where a SchedulerService answers; any of them.",
        show_default="the local mesh",
    ),
]
Namespace = Annotated[
    str,
    typer.Option("--namespace", "-n", envvar="JOBMESH_NAMESPACE", help="The tenant."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print protobuf JSON, one object per line, for machines.")
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="JOBMESH_HOME",
        metavar="FOLDER",
        help="Folder of the local mesh.",
        show_default=".jobmesh",
        file_okay=False,
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label; may be repeated."),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]


def parse_labels(given: list[str] | None) -> dict[str, str]:
    """`k=v` pairs; ValueError names the one that is none."""
    labels: dict[str, str] = {}
    for text in given or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ValueError(f"--label: {text!r} is not KEY=VALUE")
        labels[key] = value
    return labels


Since = Annotated[
    str | None,
    typer.Option(metavar="TIME|SPAN", help="Stored at or after this time, or so long ago."),
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME|SPAN", help="Stored before this time, or so long ago.")
]

OfSchedule = Annotated[str, typer.Option(metavar="NAME", help="Made by this schedule.")]


def parse_past(text: str | None) -> datetime | None:
    """A time, or a span that ends now: `2026-12-24T18:00`, `2h`."""
    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        span = seconds(text)
    except ValueError:
        span = None
    try:
        return instant(text, now) if span is None else moved(now, -span, text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time in the past: use for example 2h, or 2026-12-24T18:00+01:00"
        ) from None


def parse_app(text: str | None) -> str | None:
    """`MODULE[:APP]`; ValueError if it is the module's file instead."""
    module, colon, app = (text or "").partition(":")
    if module.endswith(".py"):
        name = module.removesuffix(".py").strip("./").replace("/", ".") or "MODULE"
        raise ValueError(
            f"--app: {text} is a file: name the module, without .py: {name}{colon}{app}"
        )
    return text
