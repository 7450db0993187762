"""Workers and schedulers as an Orchestrator with grabs on loan meets them."""

from __future__ import annotations

from collections.abc import Sequence

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed
from services.mesh.runtime import Tasks
from services.mesh.telemetry.metrics import Metrics
from services.mesh.telemetry.tracing import Tracing
from services.orchestrator.app.loans import Loans
from services.orchestrator.app.shards import Shards
from tests.unit.orchestrator.jumping_time import LoopClock


def grab(credit: int = 5, worker: str = "w1", number: int = 1, type_: str = "t") -> Grab:
    return Grab(worker, type_, credit, number, f"inbox-{worker}")


class FakeHands:
    """Notes what is said to whom."""

    def __init__(self) -> None:
        self.connected = True
        self.fails: Exception | None = None
        self.sent: list[tuple[Grab, list[Claimed]]] = []
        self.stays: list[bool] = []
        self.mores: list[bool] = []
        self.emptied: list[Grab] = []
        self.asked_anew: list[Grab] = []
        self.passed_on: list[tuple[Grab, str]] = []
        self.asked_back: list[tuple[Grab, str]] = []

    async def dispatch(
        self, grab: Grab, jobs: Sequence[Claimed], *, stay: bool, more: bool = False
    ) -> None:
        if self.fails is not None:
            raise self.fails
        self.sent.append((grab, list(jobs)))
        self.stays.append(stay)
        self.mores.append(more)

    async def answer_empty(self, grab: Grab, *, stay: bool = False) -> None:
        (self.asked_anew if stay else self.emptied).append(grab)

    async def pass_on(self, grab: Grab, to: str = "", *, back: bool = False) -> None:
        (self.asked_back if back else self.passed_on).append((grab, to))

    def go_away(self) -> None:
        """A broker that is lost while somebody speaks."""
        self.fails = DependencyUnavailable("nats", "gone")


def loans_over(shards: Shards, hands: FakeHands) -> Loans:
    return Loans(hands, shards, Tasks(), LoopClock(), Metrics("test"), Tracing())
