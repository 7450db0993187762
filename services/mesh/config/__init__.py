"""Configuration: one frozen dataclass per service, read once at boot from flags and environment.

A field `shard_dsns` is the variable `JOBMESH_SHARD_DSNS` and the flag `--shard-dsns`; the flag
wins. The annotation says how the text is read:

    str · int · float · bool       as they look; bool takes true/false, yes/no, on/off, 1/0
    Literal["json", "console"]     one of the words
    float, name ends in _seconds   "5s", "250ms", "2m", "1h" or a plain number of seconds
    str, kind="address"            "host:port", "[::1]:port"
    tuple[str, ...]                "a,b,c"
    Mapping[str, str]              "s0=postgresql://…,s1=postgresql://…"
    X | None                       as X; empty text is None

Every problem is found in one pass and told in one line that names the variable, the flag, the value
(masked if secret) and what is expected; the process then exits with 2. Rules that span fields go
into `problems()`. A variable `JOBMESH_…` that no field claims is left alone, because services may
share one environment file; an unknown flag is refused.

    @dataclass(frozen=True, kw_only=True)
    class SchedulerConfig(ShardsConfig, NatsConfig, EtcdConfig, ServiceConfig):
        slot_seconds: float = setting(1.0, "Width of the slot grabbed ahead.", low=0.05)

        def problems(self) -> Iterator[str]:
            yield from super().problems()
            if self.slot_seconds > self.drain_seconds:
                yield "slot_seconds must not exceed drain_seconds"

A secret may also stand in a file: `JOBMESH_S3_SECRET_KEY_FILE=/run/secrets/s3`, because environment
variables and arguments of a process can be read by others on the machine.
"""

from services.mesh.config.load import load, parse
from services.mesh.config.settings import ConfigError, setting
from services.mesh.config.shared import (
    EtcdConfig,
    NatsConfig,
    OrchestratorConfig,
    S3Config,
    ServiceConfig,
    ShardsConfig,
)

__all__ = [
    "ConfigError",
    "EtcdConfig",
    "NatsConfig",
    "OrchestratorConfig",
    "S3Config",
    "ServiceConfig",
    "ShardsConfig",
    "load",
    "parse",
    "setting",
]
