"""What a process is told when it is started: where the others are, which clock and which version.

Two versions of the services may share a mesh. Replicas begin with different ones, and whatever is
killed, drained or given another clock comes back as the other. So in the course of a run each
service of one version meets each of the other, under load: a rolling upgrade, and the way back,
many times over.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.links import Links, role_of

SKEWED = Path(__file__).with_name("skewed")
VERSIONS = ("now", "before")
_NUMBER = re.compile(r"-(\d+)$")


class Starts:
    """`before` is a checkout of another version, if there are to be two. Units are those of the
    mesh, and the workers of the crew.
    """

    def __init__(self, links: Links, before: Path | None = None) -> None:
        self._links, self._before = links, before
        self._skews: dict[str, float] = {}
        self._turns: Counter[str] = Counter()
        self._seen: defaultdict[str, set[str]] = defaultdict(set)

    def skew(self, unit: str, seconds: float | None) -> None:
        """From its next start on, its clock is so wrong; None: it is right."""
        if seconds is None:
            self._skews.pop(unit, None)
        else:
            self._skews[unit] = seconds

    def turn(self, unit: str) -> None:
        """Its next start is of the other version than the last."""
        self._turns[unit] += 1

    def told(self, unit: str, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Instead of these variables."""
        told = dict(self._links.reroute(unit, variables))
        paths: list[Path] = []
        if unit in self._skews:
            paths.append(SKEWED)
            told["CHAOS_CLOCK_SKEW"] = str(self._skews[unit])
        if self._before is not None:
            version = self._version(unit)
            self._seen[role_of(unit)].add(version)
            if version != VERSIONS[0]:
                paths += [self._before, *(self._before / part for part in ("gen", "sdk", "deploy"))]
                told["PYTHONSAFEPATH"] = "1"  # or the folder it is started in would come first
        if paths:
            told["PYTHONPATH"] = os.pathsep.join(map(str, paths))
        return told

    def versions(self) -> dict[str, list[str]]:
        """Those that each role was started in, if there are two."""
        return {role: sorted(seen) for role, seen in self._seen.items()}

    def _version(self, unit: str) -> str:
        found = _NUMBER.search(unit)  # the first of several has no number, or 1
        return VERSIONS[(self._turns[unit] + (int(found[1]) if found else 1) - 1) % len(VERSIONS)]
