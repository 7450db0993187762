"""What Enqueue can be told at boot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from services.enqueue.domain.quotas import Rate
from services.mesh.config import (
    EtcdConfig,
    NatsConfig,
    OrchestratorConfig,
    S3Config,
    ServiceConfig,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class EnqueueConfig(OrchestratorConfig, S3Config, NatsConfig, EtcdConfig, ServiceConfig):
    """Settings of `python -m services.enqueue`."""

    listen: str = setting("127.0.0.1:7101", "Where gRPC is served.", kind="address")
    inline_bytes: int = setting(
        16_384, "Inputs above this go to the input store.", low=0, high=1_048_576
    )
    upload_bytes: int = setting(
        5 * 1024**3, "Largest input that may be uploaded through this service.", low=1
    )
    unknown_types: Literal["refuse", "accept"] = setting(
        "refuse", "Whether jobs of a type that nobody announced are stored."
    )
    reread_seconds: float = setting(
        2.0,
        "How often watched jobs are compared with their rows: hints may be lost.",
        low=0.1,
    )
    heartbeat_seconds: float = setting(
        15.0, "How often an idle watch is told that it is alive.", low=0.1
    )
    orphan_hours: float = setting(
        24.0,
        "Objects younger than this are never collected; longer than any upload takes to submit.",
        low=0,
        high=87_600,
    )
    collect_seconds: float = setting(
        3600.0, "How often the stores are searched for orphaned objects; 0: never.", low=0
    )
    collect_dry_run: bool = setting(False, "Only count orphaned objects, and delete none.")
    watch_backlog: int = setting(
        10_000, "Events a slow watcher may be behind before it is cut off.", low=1
    )
    admitted_jobs: int = setting(
        8_192,
        "Jobs being stored at once by calls; more are refused as overloaded. As many by streams.",
        low=1_000,
    )
    admitted_bytes: int = setting(
        64 * 1024**2, "The same in bytes of their messages.", low=5 * 1024**2
    )
    storing_jobs: int = setting(
        500,
        "Of these, so many are on their way into the shards at once; the rest waits its turn.",
        low=1,
    )
    quota: str = setting(
        "0", "Jobs a second that a namespace may submit here, rate[:burst]; 0: no bound."
    )
    quotas: Mapping[str, str] = setting(
        default_factory=dict, help="Quotas of single namespaces: name=rate[:burst],…"
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name, text in {"quota": self.quota, **self.quotas}.items():
            try:
                Rate.parse(text)
            except ValueError:
                yield f"{name}: {text!r} is no quota; give jobs a second, or both like 500:2000"
