"""One watch as a pure data structure: what was delivered, what comes next, what is missing.

Per job it knows the last version delivered. An event that continues it is due; one at or below it
is old news; one further ahead shows a gap, which the caller closes by reading the events after the
last version and offering them all again. So whatever is lost, repeated or reordered on the way in,
what goes out is each version once and in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, unique


@unique
class Step(Enum):
    """What to do with an event that came in."""

    DELIVER = "deliver"
    OLD = "old"
    GAP = "gap"


class Progress:
    """How far the jobs of one watch were delivered."""

    def __init__(self, seen: Mapping[str, int], *, ends_only: bool = False) -> None:
        """With `ends_only` a version seen is that of the end."""
        self._seen = dict(seen)
        self._live = {job_id for job_id, version in seen.items() if not (ends_only and version)}
        #: Of each job with a gap, the last version that is missing. A gap may close in part.
        self._gaps: dict[str, int] = {}

    @property
    def done(self) -> bool:
        """Every job's terminal state was delivered."""
        return not self._live

    def seen(self) -> Mapping[str, int]:
        return self._seen

    def live(self) -> Collection[str]:
        """The jobs that may still change."""
        return self._live

    def missing(self) -> dict[str, int]:
        """The jobs with a gap, and the version after which to read."""
        return {job_id: self._seen[job_id] for job_id in self._gaps}

    def snapshot(self, job_id: str, version: int, terminal: bool) -> None:
        """The state at `version` is delivered as a whole."""
        self._seen[job_id] = version
        if terminal:
            self._end(job_id)

    def resume(self, job_id: str, version: int, terminal: bool) -> None:
        """The job stands at `version`; if its end was delivered before, nothing more will come."""
        if terminal and version <= self._seen[job_id]:
            self._end(job_id)

    def offer(self, job_id: str, version: int, terminal: bool) -> Step:
        """An event came in; the answer says whether to deliver it now."""
        if job_id not in self._live or version <= self._seen[job_id]:
            return Step.OLD
        if version > self._seen[job_id] + 1:
            self._gaps[job_id] = max(version - 1, self._gaps.get(job_id, 0))
            return Step.GAP
        self._seen[job_id] = version
        if self._gaps and version >= self._gaps.get(job_id, version):
            self._gaps.pop(job_id, None)
        if terminal:
            self._end(job_id)
        return Step.DELIVER

    def offer_end(self, job_id: str, version: int) -> bool:
        """The end of a job came in, whatever was before it; True: deliver it now."""
        if job_id not in self._live:
            return False
        self._seen[job_id] = version
        self._live.discard(job_id)
        return True

    def _end(self, job_id: str) -> None:
        self._live.discard(job_id)
        self._gaps.pop(job_id, None)
