"""The scheduler's settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.mesh.config import EtcdConfig, NatsConfig, ServiceConfig, ShardsConfig, setting


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ShardsConfig, NatsConfig, EtcdConfig, ServiceConfig):
    """What one scheduler is told at boot. All schedulers of a mesh should be told the same."""

    tick_seconds: float = setting(
        2.0,
        "How often a shard is looked at: its coming slot, and what is overdue, lost or expired.",
        low=0.05,
        high=60,
    )
    slot_seconds: float = setting(
        4.0, "Width of the slot grabbed ahead; read twice in that time.", low=0.1, high=600
    )
    ahead_seconds: float = setting(
        0.1,
        "How long before their time jobs are handed to workers, which start them at it; 0: not.",
        low=0,
        high=1,
    )
    park_seconds: float = setting(
        5.0,
        "How long a grab waits for work before it is answered empty; less than workers wait.",
        low=0.1,
        high=3600,
    )
    claim_batch: int = setting(
        500, "Most jobs in one claim, however large the credit.", low=1, high=10_000
    )
    claims_per_shard: int = setting(4, "Claims under way on one shard at once.", low=1, high=64)
    linger_factor: float = setting(
        2.0,
        "Small claims keep so many times their duration apart, for batches to form; 0: none.",
        low=0,
        high=100,
    )
    message_bytes: int = setting(
        900_000, "Largest message to a worker; below the broker's max_payload.", low=1_000
    )
    # Locking is the first thing a worker does with a dispatch. Together with the round of the sweep
    # and the call for workers this finds and posts a lost one again within six seconds.
    dispatch_seconds: float = setting(
        4.0, "A dispatch that nobody locked for so long is lost.", low=0.1, high=3600
    )
    rescue_seconds: float = setting(
        10.0, "How often the rows are compared with the living workers.", low=0.05
    )
    lease_seconds: int = setting(
        5, "How soon the others take over after this process died.", low=2, high=300
    )
    statement_seconds: float = setting(
        2.5, "Longest statement; one that takes longer is given up.", low=0.1, high=60
    )

    purge_seconds: float = setting(
        300.0, "How often jobs that were kept for long enough are looked for.", low=0.05
    )
    keep_succeeded_days: float = setting(
        7.0, "How long jobs that SUCCEEDED are kept, unless their type says.", low=0, high=3650
    )
    keep_failed_days: float = setting(30.0, "The same for jobs that FAILED.", low=0, high=3650)
    keep_cancelled_days: float = setting(
        30.0, "The same for jobs that were CANCELLED.", low=0, high=3650
    )
    keep_expired_days: float = setting(30.0, "The same for jobs that EXPIRED.", low=0, high=3650)
    resume_hours: float = setting(
        6.0,
        "How long a watch by filter can be resumed; no ended job is deleted sooner.",
        low=0,
        high=8760,
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.slot_seconds < 2 * self.tick_seconds:
            yield "slot_seconds must be twice tick_seconds or more: a slot is read twice"
        if not self.shard_dsns:
            yield "shard_dsns must name at least one shard"
