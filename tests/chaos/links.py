"""Fault proxies on every link of a mesh: each unit reaches each other one through its own.

links = Links()
mesh = running_mesh(home, reroute=links.reroute)
async with links.between(mesh.plan, ["worker-1"]):
    ...                      # start the mesh in another thread: the proxies live in this loop
    links["scheduler", "nats"].become(Link.HOLD)
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from localmesh.plan import Plan
from localmesh.ports import LOOPBACK

from services.mesh.testing.faults import FaultProxy
from tests.chaos.broker import BrokerTap

CLIENT = "client"
_ADDRESS = re.compile(re.escape(LOOPBACK) + r":(\d+)")
#: Whom a role talks to.
_TALKS_TO: Mapping[str, tuple[str, ...]] = {
    "orchestrator": ("shard", "nats", "etcd"),
    "enqueue": ("orchestrator", "nats", "etcd", "s3"),
    "scheduler": ("shard", "nats", "etcd"),
    "scaler": ("orchestrator", "nats", "etcd", "s3"),
    "worker": ("orchestrator", "nats", "etcd", "s3"),
    CLIENT: ("enqueue",),
}
Pair = tuple[str, str]


def role_of(unit: str) -> str:
    """`scheduler-2` is a scheduler."""
    return re.sub(r"-\d+$", "", unit)


def pairs(units: Sequence[str]) -> list[Pair]:
    """Who talks to whom among these units, and the outside client."""
    return [
        (caller, callee)
        for caller in [*units, CLIENT]
        for callee in units
        if role_of(callee) in _TALKS_TO.get(role_of(caller), ())
    ]


class Links:
    """The proxies by (who calls, who is called)."""

    def __init__(self) -> None:
        self.taps: dict[str, BrokerTap] = {}
        """What reads along with the broker, by the unit it speaks to."""
        self._proxies: dict[Pair, FaultProxy] = {}
        self._ports: dict[int, str] = {}

    def __getitem__(self, pair: Pair) -> FaultProxy:
        return self._proxies[pair]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._proxies)

    def of(self, unit: str) -> list[FaultProxy]:
        """All links that begin or end at a unit."""
        return [proxy for pair, proxy in self._proxies.items() if unit in pair]

    def targets(self, callee: Sequence[str]) -> list[str]:
        """Where outside clients find these units."""
        return [self._proxies[CLIENT, unit].address for unit in callee]

    def reroute(self, unit: str, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Variables in which every address that has a proxy for this unit is the proxy's."""

        def instead(found: re.Match[str]) -> str:
            proxy = self._proxies.get((unit, self._ports.get(int(found[1]), "")))
            return proxy.address if proxy else found[0]

        return {name: _ADDRESS.sub(instead, value) for name, value in variables.items()}

    @asynccontextmanager
    async def between(self, plan: Plan, workers: Sequence[str]) -> AsyncIterator[None]:
        """Open the proxies of a mesh and of workers that are not its own."""
        ports = {name: next(iter(unit.ports.values())) for name, unit in plan.units.items()}
        self._ports = {port: name for name, port in ports.items()}
        async with AsyncExitStack() as stack:
            for caller, callee in pairs([*plan.units, *workers]):
                proxy = FaultProxy(ports[callee], self._tap(caller, callee))
                self._proxies[caller, callee] = await stack.enter_async_context(proxy)
            yield

    def _tap(self, caller: str, callee: str) -> BrokerTap | None:
        if callee != "nats":
            return None
        return self.taps.setdefault(caller, BrokerTap())
