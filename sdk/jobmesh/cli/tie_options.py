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
    """`KEY` or `KEY:POLICY`. Keys may have colons; one that ends almost like a policy needs one, so
    that no misspelt policy hides in it. ValueError says which there are.
    """
    from difflib import get_close_matches

    from jobmesh.ties import Unique, UniquePolicy

    if given is None:
        return None
    policies = get_args(UniquePolicy)
    key, _, policy = given.rpartition(":")
    near = get_close_matches(policy, policies, n=1) if key else []
    if not given or given.startswith(":") or (near and policy not in policies):
        way = f": did you mean {near[0]}? If not, say {given}:keep" if near else ""
        raise ValueError(f"--unique: {given!r} is not KEY[:keep|replace|refuse]{way}")
    if policy in policies and key:
        return Unique(key, policy)  # type: ignore[arg-type]
    return Unique(given)
