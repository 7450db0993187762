"""What a worker says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's registration. But for the id and the draining it outlives identities."""

    capacity: Mapping[str, int]
    host: str
    pid: int
    start_time: datetime
    version: str
    address: str = ""
    started_by: str = ""
    worker_id: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """A worker at one moment."""

    info: WorkerInfo
    running: int
    lease_trusted_until: datetime | None
    finished: Mapping[str, int]
