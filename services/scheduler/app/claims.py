"""Claims: how they are made, what one is, and what is remembered of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from services.mesh.jobs.credit import Grab
from services.mesh.jobs.turns import Turn
from services.mesh.jobs.type_settings import TypeSettings
from services.mesh.store.answers import ClaimAnswer
from services.scheduler.domain.depth import Depth, DepthRules
from services.scheduler.domain.pace import Pace, PaceRules
from services.scheduler.domain.shares import Share, ShareRules

#: Timers go off when this part of the time that claims look ahead is left: so one claim takes the
#: jobs of many timers.
LEAD = 0.3
#: Room that is worth to be held for longer.
AMPLE = 8
#: (type, shard) pairs whose pace is remembered; forgetting one costs a claim a little too early.
MOST_LANES = 10_000


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """How claims are made."""

    most_per_shard: int = 4
    """Claims under way on one shard; each takes a connection."""
    ahead: float = 0.0
    """How long before their time, in seconds, jobs are handed to workers that wait for it."""

    def ahead_for(self, grab: Grab) -> timedelta:
        """A worker with little room should not hold it for long."""
        if not grab.waits:
            return timedelta(0)
        return timedelta(seconds=self.ahead * (1.0 if grab.credit >= AMPLE else LEAD))

    pace: PaceRules = field(default_factory=PaceRules)
    share: ShareRules = field(default_factory=ShareRules)
    depth: DepthRules = field(default_factory=DepthRules)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim under way."""

    grab: Grab
    shard: str
    limit: int
    mark: int
    nudges: Collection[int]
    """All that the flag was raised by, if nothing else raised it."""
    began: float
    ahead: timedelta
    recent: timedelta | None
    """Only what has not been due for longer; None: everything."""
    shallow: bool = False
    """It leaves aside only what an earlier one did not find either."""
    below: int | None = None
    """Only lower priorities; None: all."""
    turn: Turn | None = None
    """It begins with namespaces in turn, before it goes on with the line."""
    settings: TypeSettings | None = None
    """Set if the type has limits."""

    @property
    def is_whole(self) -> bool:
        """Whether it leaves nothing aside."""
        return self.recent is None and self.below is None

    @property
    def is_thorough(self) -> bool:
        """Whether nothing is left if it comes back short: it leaves nothing aside that there is."""
        return self.is_whole or self.shallow


@dataclass(frozen=True, slots=True)
class After:
    """What is left to do when a claim has ended."""

    full: Grab | None
    """A grab whose room is used up, to be answered."""
    served: Collection[int]
    """The nudges whose work it brought, all of it."""


@dataclass(frozen=True, slots=True)
class Short:
    """A claim that took all there was."""

    type: str
    shard: str
    began: float
    """By the local clock."""
    brought: int
    until: datetime
    """It looked for what is due up to then, by the shard's clock."""


@dataclass(slots=True)
class Lane:
    """What is remembered of the claims on one (type, shard)."""

    pace: Pace
    share: Share
    depth: Depth
    told: float = -math.inf
    """When the other schedulers were last told that it is served."""

    def learn(self, claim: Claim, answer: ClaimAnswer, received: float) -> None:
        """Take note of what a claim brought."""
        brought, short = len(answer.jobs), len(answer.jobs) < claim.limit
        if claim.turn is not None and answer.turned is not None:
            self.share.went_in_turn(claim.turn, answer.turned, claim.limit, received)
        if answer.more or (answer.turned is not None and answer.turned.jobs == claim.limit):
            return  # the line was not looked at, or not to its end
        if claim.is_thorough:
            self.share.ended(_waited(answer), answer.lowest, answer.crowd, full=not short)
        if claim.is_whole:
            self.depth.looked(claim.began, received, answer.took, short=short)
        elif claim.shallow:
            self.depth.went_on(claim.began, short=short)
        elif claim.below is not None:
            self.share.went_below(brought, answer.lowest, full=not short)


class Lanes:
    """The lanes that were claimed from lately."""

    def __init__(self, rules: ClaimRules) -> None:
        self._rules = rules
        self._lanes: dict[tuple[str, str], Lane] = {}

    def of(self, type_: str, shard: str) -> Lane:
        lane = self._lanes.get((type_, shard))
        if lane is None:
            if len(self._lanes) > MOST_LANES:
                self._lanes.clear()
            rules = self._rules
            lane = Lane(Pace(rules.pace), Share(rules.share), Depth(rules.depth))
            self._lanes[type_, shard] = lane
        return lane


def _waited(answer: ClaimAnswer) -> float:
    """How long, in seconds, the oldest of the jobs has been due."""
    oldest = min((job.due_time for job in answer.jobs), default=answer.now)
    return (answer.now - oldest).total_seconds()
