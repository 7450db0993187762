"""Flags that say what follows a failed attempt."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jobmesh.retry import Retry


class Backoff(StrEnum):
    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    FIXED = "fixed"


Retries = Annotated[
    int | None, typer.Option(min=0, max=999, help="How often a failed job is tried again.")
]
Growth = Annotated[
    Backoff | None, typer.Option(help="How the wait grows.", show_default="exponential")
]
FirstWait = Annotated[
    str | None,
    typer.Option(metavar="SPAN", help="The first wait before a retry.", show_default="1s"),
]
Waits = Annotated[
    str | None,
    typer.Option(metavar="SPAN,SPAN,…", help="Exactly these waits; instead of --retries."),
]
Jitter = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Part of each wait drawn at random.", show_default="0.1"),
]
Window = Annotated[
    str | None,
    typer.Option(metavar="SPAN", help="No attempt starts later than this after it was due."),
]
RetryOn = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE|CODE", help="Try again only after this failure; may be repeated."),
]
NoRetryOn = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE|CODE", help="Never after this failure; may be repeated."),
]


def parse_retry(
    retries: int | None,
    backoff: Backoff | None,
    delay: str | None,
    waits: str | None,
    jitter: float | None,
    window: str | None,
    only_on: list[str] | None,
    never_on: list[str] | None,
) -> Retry | None:
    """The policy that the flags describe; None when they say nothing, so that the type's holds."""
    if waits and (retries is not None or backoff or delay):
        raise ValueError("--retry-waits says all: leave out --retries, --backoff, --retry-delay")
    if not retries and not waits:
        if backoff or delay or only_on or never_on or window or jitter is not None:
            raise ValueError(
                "--backoff, --retry-delay, --retry-jitter, --retry-window, --retry-on, "
                "--no-retry-on: give --retries or --retry-waits"
            )
        return None if retries is None else _none()
    retry = _listed(waits) if waits else _shape((retries or 0) + 1, backoff, delay or "1s")
    if jitter is not None:
        retry = replace(retry, jitter=jitter)
    if window:
        retry = retry.within(window)
    types, codes = _types_and_codes(only_on)
    retry = retry.only_on(*types).only_on_exit(*codes)
    types, codes = _types_and_codes(never_on)
    return retry.except_on(*types).except_on_exit(*codes)


def _listed(waits: str) -> Retry:
    from jobmesh.retry import Retry

    return Retry.waits([span.strip() for span in waits.split(",")])


def _none() -> Retry:
    from jobmesh.retry import Retry

    return Retry.none()


def _shape(attempts: int, backoff: Backoff | None, delay: str) -> Retry:
    from jobmesh.retry import Retry

    if backoff is Backoff.FIXED:
        return Retry.fixed(delay, attempts=attempts)
    if backoff is Backoff.LINEAR:
        return Retry.linear(delay, attempts=attempts)
    return Retry.exponential(delay, attempts=attempts)


def _types_and_codes(given: list[str] | None) -> tuple[list[str], list[int]]:
    """No failure's type is a number, so that numbers are exit codes."""
    types: list[str] = []
    codes: list[int] = []
    for one in given or []:
        if one.removeprefix("-").isdecimal():
            codes.append(int(one))
        else:
            types.append(one)
    return types, codes
