"""Turns: claims that begin with the namespaces of a type one after the other."""

from __future__ import annotations

from services.mesh.jobs.record import record


@record
class Turn:
    """Where a claim begins, before it goes on at the front of the line."""

    after: str = ""
    """With the namespaces after this one, in the order of their bytes, and if there is nobody, or
    this is "", with the first."""
    besides: str = ""
    """Passing over this one, which has the front of the line; "": none."""
    least: int | None = None
    """Only with jobs of this priority and above; None: all."""


@record
class Turned:
    """What it brought."""

    jobs: int
    namespaces: int
    """So many were found to wait, and had an equal part each."""
    last: str
    """Where it stopped; "": it came to the last namespace."""
    took: float
    """Seconds, by the shard's clock."""
