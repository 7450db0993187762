"""How a shard is connected to, and the session settings that its statements rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Limits of one shard's connections. Times in seconds."""

    application: str = "jobmesh"
    """Shows in pg_stat_activity."""
    min_connections: int = 1
    max_connections: int = 8
    max_waiting: int = 1000
    """Calls that may wait for a connection; more are refused at once."""
    acquire_timeout: float = 1.0
    """Longest wait for a connection."""
    connect_timeout: float = 2.0
    statement_timeout: float = 5.0
    lock_timeout: float = 2.0
    call_timeout: float = 6.0
    """When the client gives up and cuts the connection. Longer than the server's own timeouts, so
    that a slow shard answers with an error (certain) and only a hanging one is cut (unknown)."""

    def __post_init__(self) -> None:
        if not self.lock_timeout <= self.statement_timeout < self.call_timeout:
            raise ValueError("the timeouts must grow: lock, statement, call")


# Plans must not depend on luck. A prepared statement planned while the tables were empty, or with
# the statistics of a burst, may choose a sequential scan or a hash over the whole table and keep it
# until the connection ends. Every statement here is meant to run as nested loops over index probes,
# driven by a small array or a LIMIT. So: forbid the other shapes, and plan once per connection
# (planning took 0.3-0.6 ms a statement, about what running it for a lone job takes).
_PLANS: Mapping[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}


def connection_options(settings: StoreSettings) -> dict[str, str | int]:
    """Parameters for libpq."""
    session = dict(_PLANS)
    session["timezone"] = "UTC"
    session["statement_timeout"] = f"{round(settings.statement_timeout * 1000)}"
    session["lock_timeout"] = f"{round(settings.lock_timeout * 1000)}"
    session["idle_in_transaction_session_timeout"] = session["statement_timeout"]
    # An acknowledged job is on disk, whatever the server's default.
    session["synchronous_commit"] = "on"
    return {
        "options": " ".join(f"-c {name}={value}" for name, value in session.items()),
        "application_name": settings.application,
        "connect_timeout": max(2, round(settings.connect_timeout)),
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": round(settings.call_timeout * 1000),
    }
