"""Whether a shard answers, with hysteresis: a pure state machine fed with the outcomes of probes.

    HEALTHY --fail--> SUSPECT --fail, fail--> AWAY --ok, ok--> HEALTHY
                         └──ok──▶ HEALTHY

Probes run about every second with a deadline of 400 ms, and five times as often while in doubt; a
statement that is out for 200 ms makes the next one come at once. So a shard that hangs while it is
used is AWAY within 1.5 s, one that nobody uses within 2.1. One lost probe redirects nothing; one
lucky probe on a flapping shard brings nothing back. A probe that is not answered in time while
other statements are counts for nothing: that shard is slow, and cutting it off makes it slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

FAILURES_TO_LEAVE = 3
SUCCESSES_TO_RETURN = 2


@unique
class Health(Enum):
    """What the probes say."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The state of one shard's breaker. Starts AWAY: a shard is used once it has answered."""

    health: Health = Health.AWAY
    streak: int = 0
    """Failures in a row while SUSPECT, successes in a row while AWAY."""

    @property
    def usable(self) -> bool:
        """Whether calls go to it at all."""
        return self.health is not Health.AWAY

    def after_probe(self, ok: bool) -> ShardHealth:
        """The state after one more probe."""
        if self.health is Health.AWAY:
            return self._away_after(ok)
        if ok:
            return ShardHealth(Health.HEALTHY)
        failures = self.streak + 1
        if failures >= FAILURES_TO_LEAVE:
            return ShardHealth(Health.AWAY)
        return ShardHealth(Health.SUSPECT, failures)

    def _away_after(self, ok: bool) -> ShardHealth:
        successes = self.streak + 1 if ok else 0
        if successes >= SUCCESSES_TO_RETURN:
            return ShardHealth(Health.HEALTHY)
        return ShardHealth(Health.AWAY, successes)
