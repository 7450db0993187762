"""The handler of the pool that the Scaler is struck with."""

from __future__ import annotations

from jobmesh import job


@job("pooled")
async def pooled() -> None:
    """Nothing."""
