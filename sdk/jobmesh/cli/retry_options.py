"""Flags that say what follows a failed attempt."""

from __future__ import annotations

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
Growth = Annotated[Backoff, typer.Option(help="How the wait grows.")]
FirstWait = Annotated[str, typer.Option(metavar="SPAN", help="The first wait before a retry.")]
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
    backoff: Backoff,
    delay: str,
    only_on: list[str] | None,
    never_on: list[str] | None,
) -> Retry | None:
    """The policy that the flags describe; None when they describe none."""
    if not retries:
        if only_on or never_on:
            raise ValueError("--retry-on and --no-retry-on choose among failures: give --retries")
        return None
    types, codes = _types_and_codes(only_on)
    retry = _shape(retries + 1, backoff, delay).only_on(*types).only_on_exit(*codes)
    types, codes = _types_and_codes(never_on)
    return retry.except_on(*types).except_on_exit(*codes)


def _shape(attempts: int, backoff: Backoff, delay: str) -> Retry:
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
