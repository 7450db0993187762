"""Options of `submit` about other jobs: `--after ID[:POLICY]` and `--unique KEY[:POLICY]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

if TYPE_CHECKING:
    from jobmesh.ties import After, Unique

AfterJobs = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="ID[:run|cancel|fail]",
        help="Wait for this job; and what follows if it does not succeed. May be repeated.",
    ),
]
UniqueKey = Annotated[
    str | None,
    typer.Option(
        "--unique",
        metavar="KEY[:keep|replace|refuse]",
        help="One live job per key; and what follows if there is one.",
    ),
]


def parse_after(given: list[str] | None) -> list[After]:
    """`ID` or `ID:POLICY`; ValueError names the one that is neither."""
    from jobmesh.ties import After, OnFailure

    waits = []
    for text in given or []:
        job_id, _, policy = text.partition(":")
        if not job_id or (policy and policy not in get_args(OnFailure)):
            raise ValueError(f"--after: {text!r} is not ID[:run|cancel|fail]")
        waits.append(After(job_id, policy) if policy else After(job_id))  # type: ignore[arg-type]
    return waits


def parse_unique(given: str | None) -> Unique | None:
    """`KEY` or `KEY:POLICY`. A key with colons needs a policy, so that no misspelt one hides in it.

    ValueError says which there are.
    """
    from jobmesh.ties import Unique, UniquePolicy

    if given is None:
        return None
    key, colon, policy = given.rpartition(":")
    if not colon:
        key, policy = given, "keep"
    if not key or policy not in get_args(UniquePolicy):
        way = f"; a key with colons needs one, as in {given}:keep" if key else ""
        raise ValueError(f"--unique: {given!r} is not KEY[:keep|replace|refuse]{way}")
    return Unique(key, policy)  # type: ignore[arg-type]
