"""The flags that say when a schedule runs, and how."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from jobmesh.times import instant

if TYPE_CHECKING:
    from jobmesh.client.timing import Timing

Every = Annotated[str | None, typer.Option(metavar="SPAN", help="This often: 30s, 5m, 1h30m, 1d.")]
Phase = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Shifts --every: 1h with phase 5m is five past.")
]
Cron = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPR", help="'30 2 * * MON-FRI', six fields with seconds, @daily; repeatable."
    ),
]
TimeZone = Annotated[
    str | None,
    typer.Option("--time-zone", "--tz", metavar="ZONE", help="Of the cron rules: Europe/Berlin."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="EXPR", help="Cron: times that are left out; may be repeated."),
]
Start = Annotated[
    str | None, typer.Option(metavar="TIME", help="No run before this: ISO time or 'in 5m'.")
]
End = Annotated[str | None, typer.Option(metavar="TIME", help="No run at or after this.")]
MaxRuns = Annotated[int | None, typer.Option(min=0, help="It ends after so many; 0 is no limit.")]
Jitter = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Each run is late by a random part of this.")
]
Overlap = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="While a run goes on: allow-all, skip, buffer-one, buffer-all, cancel-other.",
    ),
]
CatchUp = Annotated[
    str | None,
    typer.Option(metavar="POLICY", help="Times missed while nothing could fire: skip, last, all."),
]
CatchUpWindow = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Nothing older is caught up.")
]
DstGap = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY", help="Times the clocks leave out: skip, run-at-shift, run-before."
    ),
]
DstOverlap = Annotated[
    str | None, typer.Option(metavar="POLICY", help="Times that come twice: once, twice.")
]
PauseOnFailure = Annotated[
    bool | None,
    typer.Option("--pause-on-failure/--no-pause-on-failure", help="Pause when a run ends FAILED."),
]
AllowMany = Annotated[
    bool, typer.Option("--allow-many", help="Go ahead although it makes many jobs at once.")
]

#: Said as text that a span or a time may be taken back with.
NOTHING = "none"


def timing(given: dict[str, Any], *, has_rules: bool = False) -> Timing:
    """What was said, as the client takes it; "none" takes a span or a time back.

    A schedule that `has_rules` may be moved to another zone without a word about these.
    """
    said = {name: value for name, value in given.items() if value is not None and value != []}
    for name in ("start", "end"):
        if name in said:
            said[name] = None if said[name] == NOTHING else instant(said[name], datetime.now(UTC))
    for name in ("jitter", "catch_up_window"):
        if said.get(name) == NOTHING:
            said[name] = None
    moved = has_rules and "every" not in said
    if "time_zone" in said and not moved and not {"cron", "exclude"} & said.keys():
        raise ValueError("--time-zone goes with --cron or --exclude")
    return cast("Timing", said)
