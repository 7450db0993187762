"""Forgetting: jobs that ended long ago, with all that belongs to them, and the order's old end.

Ended jobs are found by walking ids, which are in the order of their making. A walk begins at the
oldest job and ends at the youngest that may be over, so that it never touches what is young, needs
no index by end time (whose entries every transition would have to write), and meets again only the
few that are kept for longer. Types that are kept for less long than others have walks of their own,
over the index that lists use.

What was deleted stays in the indexes until a vacuum may remove it, which it may not while somebody
holds a transaction open. So a walk begins at the first job that the one before left, and the order
is shortened from where it was last. Ids are dated by whoever minted them, so that one may come up
before: every `FROM_FIRST` rounds a walk begins at the very first.

Each call is one statement over a bounded number of rows; the caller sets the pace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from services.mesh.jobs.ids import first_id_at
from services.mesh.jobs.states import TERMINAL
from services.mesh.jobs.type_settings import Retention, RetentionRules
from services.mesh.store.answers import OutputReference, PurgeStep
from services.mesh.store.arrays import Texts, Uuids
from services.mesh.store.base import Int8, ShardBase

#: One in so many rounds walks from the very first job.
FROM_FIRST = 20
_FIRST = UUID(int=0)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(slots=True)
class Walk:
    """A walk under way: over all jobs, or those of one type in one namespace."""

    shortest: timedelta
    type: str = ""
    namespace: str = ""
    after: UUID = _FIRST
    left: UUID | None = None
    """The first job that it met and that stays."""

    @property
    def name(self) -> tuple[str, str]:
        return self.type, self.namespace


class Purging(ShardBase):
    """Deletes what was kept for long enough."""

    #: The walks of this time round that are left; none: the next one begins.
    _walks: Sequence[Walk] = ()
    _rounds = 0
    #: By walk, the job before the first that is left.
    _before: dict[tuple[str, str], UUID]
    #: The last transaction that is gone from the order, with all before it.
    _gone_xid = "0"
    #: The last schedule whose name was looked at.
    _after_name = _FIRST

    async def purge_order(self, older_than: timedelta, limit: int = 1000) -> int:
        """Shorten the order of events; how many entries went."""
        params = {"age": older_than, "limit": Int8(limit), "after": self._gone_xid}
        ((gone, last),) = await self._fetch("purge_order", params)
        self._gone_xid = last or self._gone_xid
        return int(gone)

    async def purge_jobs(self, rules: RetentionRules, limit: int = 500) -> PurgeStep:
        """The next step of the walk over ended jobs. It goes by these rules, whatever they were
        when the walk began: that may be long ago, and what is to be kept by now must not go.
        """
        walks = self._walks = self._walks or await self._begin(rules)
        walk = walks[0]
        now = (await self._fetch("probe"))[0][0]
        until = first_id_at(round((now - walk.shortest).timestamp() * 1000) + 1)
        params = {
            "keep": _document(rules),
            "after": walk.after,
            "until": until,
            "limit": Int8(limit),
            "order": self._gone_xid,
        }
        if walk.type:
            params |= {"type": walk.type, "namespace": walk.namespace}
        name = "purge_type" if walk.type else "purge_jobs"
        gone, last, seen, left = (await self._fetch(name, params))[0]
        walk.after, walk.left = last or walk.after, walk.left or left
        if seen < limit:
            self._end(walk)
            self._walks = walks[1:]
        return PurgeStep(gone, seen, not self._walks)

    async def purge_names(self, limit: int = 1000) -> int:
        """Forget names of schedules that nothing refers to any more; how many. Looks at `limit`
        names, on from where the last call stopped, and round: those in use may be any number.
        """
        params = {"after": self._after_name, "limit": Int8(limit)}
        ((gone, seen, last),) = await self._fetch("purge_names", params)
        self._after_name = _FIRST if seen < limit else last
        return int(gone)

    async def input_references(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that a job or a schedule refers to."""
        return {row[0] for row in await self._fetch("input_references", {"keys": Texts(keys)})}

    async def output_references(self, ids: Sequence[UUID]) -> list[OutputReference]:
        """Where the jobs that exist stand."""
        rows = await self._fetch("output_references", {"ids": Uuids(list(set(ids)))})
        return [OutputReference(*row) for row in rows]

    async def _begin(self, rules: RetentionRules) -> list[Walk]:
        walks = [Walk(_shortest(rules.mesh, rules.mesh))]
        shorter = list(_shorter(rules))
        if shorter:
            spaces = [row[0] for row in await self._fetch("namespaces")]
            walks += [Walk(span, type_, space) for type_, span in shorter for space in spaces]
        self._rounds += 1
        if self._rounds % FROM_FIRST == 1:
            self._before = {}
        for walk in walks:
            walk.after = self._before.get(walk.name, _FIRST)
        return walks

    def _end(self, walk: Walk) -> None:
        self._before[walk.name] = walk.after if walk.left is None else UUID(int=walk.left.int - 1)


def _shorter(rules: RetentionRules) -> Iterator[tuple[str, timedelta]]:
    """The types of which jobs may go before any other's do."""
    usual = _shortest(rules.mesh, rules.mesh)
    for type_, retention in rules.types.items():
        span = _shortest(retention, rules.mesh)
        if span < usual:
            yield type_, span


def _shortest(retention: Retention, mesh: Retention) -> timedelta:
    spans = (_kept(retention, mesh, int(state)) for state in TERMINAL)
    return min(spans) * _MILLISECOND


def _kept(retention: Retention, mesh: Retention, state: int) -> int:
    """Milliseconds."""
    for rules in (retention, mesh):
        span = rules.by_state()[state]
        if span is not None:
            return span // _MILLISECOND
    raise ValueError("the mesh says how long each state is kept")


def _document(rules: RetentionRules) -> str:
    every: Mapping[str, Retention] = {"": rules.mesh} | dict(rules.types)
    return json.dumps(
        {
            type_: {str(int(state)): _kept(one, rules.mesh, int(state)) for state in TERMINAL}
            for type_, one in every.items()
        }
    )
