"""Being one of several Scalers, of which one leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease import Election, Lease, LeaseState, Registry
from services.mesh.runtime import Backoff, Dependency, Tasks

Grant = Callable[[], Awaitable[Lease]]


class Candidacy:
    """Holds a lease, stands for election under it, and begins anew when the lease is lost.

    `is_leader` is true only inside the lease's trust window, so a Scaler that was frozen or cut off
    stops acting before another one can begin to.
    """

    name = "candidacy"

    def __init__(
        self,
        registry: Registry,
        key: str,
        candidate: str,
        grant: Grant,
        tasks: Tasks,
        dependency: Dependency,
    ) -> None:
        self._registry, self._key, self._candidate = registry, key, candidate
        self._grant, self._tasks, self._dependency = grant, tasks, dependency
        self._backoff = Backoff(first=0.1, ceiling=2.0)
        self._callbacks: list[Callable[[bool], None]] = []
        self._election: Election | None = None
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_leader(self) -> bool:
        return self._election is not None and self._election.is_leader

    @property
    def lease_id(self) -> int:
        """The lease we lead under, as the fence of our writes; 0 if we do not lead."""
        return self._lease.lease_id if self._lease is not None and self.is_leader else 0

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Call back with `is_leader` whenever it changes."""
        self._callbacks.append(callback)

    async def start(self) -> None:
        if self._task is None:
            self._task = self._tasks.spawn(self._run(), self.name)

    async def stop(self) -> None:
        """Give up leading and the lease, so that another Scaler takes over at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                lease = await self._grant()
            except DependencyUnavailable as error:
                failures += 1
                self._dependency.down(error)
                await asyncio.sleep(self._backoff.delay(failures))
                continue
            failures = 0
            await self._stand(lease)

    async def _stand(self, lease: Lease) -> None:
        """Be a candidate for as long as the lease lives."""
        lease.on_change(self._judge)
        self._dependency.up()
        election = Election(self._registry, lease, self._key, self._candidate)
        election.on_change(self._announce)
        self._election, self._lease = election, lease
        try:
            await election.start()
            await lease.lost.wait()
        finally:
            await election.stop()
            await lease.close()

    def _judge(self, state: LeaseState) -> None:
        if state is LeaseState.HELD:
            self._dependency.up()
        elif state is not LeaseState.CLOSED:
            self._dependency.down(f"the lease is {state.value}")

    def _announce(self, leading: bool) -> None:
        for callback in self._callbacks:
            callback(leading)
