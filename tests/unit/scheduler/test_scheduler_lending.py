"""Grabs that are lent to whoever stores such jobs: when, to whom, and when they are wanted back."""

from __future__ import annotations

from typing import Any

import pytest

from services.mesh.clock import ManualClock
from services.mesh.jobs.type_settings import TypeSettings
from services.scheduler.app.lending import Lender
from services.scheduler.domain.lending import CROSSING, LoanPlan, LoanRules
from services.scheduler.domain.word import Word
from tests.unit.scheduler.scheduler_fakes import Bench, until

RULES = LoanRules(lasts=4.0, memory=60.0, contested=5.0)
A, B = "grab_at.a", "grab_at.b"


class TestPlan:
    """Whom to lend to."""

    def test_nobody_before_anybody_has_stored_such_jobs(self) -> None:
        assert LoanPlan(RULES).borrower("t", 0) is None

    def test_whoever_stored_the_last_ones_for_as_long_as_that_is_remembered(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        assert (plan.borrower("t", 60), plan.borrower("u", 0)) == (A, None)
        assert plan.borrower("t", 61) is None

    def test_one_that_asks_for_more_is_lent_to_though_no_nudge_came_for_long(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.lent("t", 58)
        plan.asked("t", A, 59)
        assert plan.borrower("t", 100) == A
        assert plan.recall("t", 60), "what it has of others is still out"

    def test_one_that_asks_when_another_was_heard_of_gets_nothing(self) -> None:
        plan = LoanPlan(RULES)
        plan.asked("t", A, 0)
        assert plan.borrower("t", 0) is None
        plan.heard("t", B, 1)
        plan.asked("t", A, 60)
        assert plan.borrower("t", 60) == B
        assert plan.borrower("t", 62) is None

    def test_a_nudge_that_crosses_a_loan_leaves_it_to_be_recalled(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.lent("t", 10)
        plan.heard("t", A, 10 + CROSSING / 2)
        assert plan.recall("t", 11)

    def test_nobody_while_two_store_the_same_type(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.heard("t", B, 1)
        assert plan.borrower("t", 5.9) is None
        assert plan.borrower("t", 6) == B

    def test_one_that_takes_the_place_of_another_is_lent_to_at_once(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.heard("t", B, 5)
        assert plan.borrower("t", 5) == B

    def test_what_is_lent_can_be_recalled_once(self) -> None:
        plan = LoanPlan(RULES)
        assert not plan.recall("t", 0)
        plan.heard("t", A, 0)
        plan.lent("t", 1)
        assert plan.recall("t", 2)
        assert not plan.recall("t", 3)

    def test_what_has_ended_by_itself_is_not_recalled(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.lent("t", 1)
        assert not plan.recall("t", 6)

    def test_a_borrower_that_nudges_has_sent_back_what_it_had(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.lent("t", 1)
        plan.heard("t", A, 2)
        assert not plan.recall("t", 2)

    def test_another_one_that_nudges_has_not(self) -> None:
        plan = LoanPlan(RULES)
        plan.heard("t", A, 0)
        plan.lent("t", 1)
        plan.heard("t", B, 2)
        assert plan.recall("t", 2)

    def test_it_remembers_no_more_types_than_it_may(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("services.scheduler.domain.lending.MOST_TYPES", 2)
        plan = LoanPlan(RULES)
        for type_ in "abc":
            plan.heard(type_, A, 0)
        assert plan.borrower("a", 0) is None
        assert plan.borrower("c", 0) == A


class LendBench(Bench):
    """The bench with a lender, connected as a scheduler does it."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.time = ManualClock()
        plan = LoanPlan(RULES)
        self.lender = Lender(self.board, self.broker, self.bounds, self.time, plan)
        self.lender.is_claiming = self.claimer.is_claiming
        self.claimer.on_quiet = self.lender.offer
        self.board.on_unserved = self.lender.want
        self.types.on_change(self.lender.settings_changed)

    def nudge(self, at: str = A, type_: str = "t") -> None:
        word = Word("s0", [type_], lend_at=at)
        self.lender.heard(word)
        self.board.heard(word)

    async def lent(self) -> list[tuple[str, str]]:
        """Offer what there is, and see what went where."""
        self.lender.offer("t")
        await self.lender.run_once()
        return [(grab.worker_id, at) for grab, at, _ in self.broker.lent]


@pytest.fixture
async def bench():
    async with LendBench("s0") as bench:
        yield bench


async def quiet(bench: LendBench) -> None:
    """A nudge came, and a claim that found nothing."""
    bench.nudge()
    bench.grab("w0", 1)
    await until(lambda: not bench.board.flags.wants("t") and not bench.claimer.is_claiming("t"))


async def test_a_grab_that_nothing_waits_for_is_lent(bench):
    await quiet(bench)
    assert await bench.lent() == [("w0", A)]
    assert bench.board.book.credit_of("t") == 0
    assert bench.broker.lent[0][2] == RULES.lasts


async def test_a_claim_that_ends_a_backlog_offers_what_is_left(bench):
    bench.stores["s0"].store("t", 1)
    bench.grab("w1", 5)
    bench.grab("w2", 5)
    bench.nudge()
    await until(lambda: bench.sent() == 1 and not bench.board.flags.wants("t"))
    await bench.lender.run_once()
    assert [grab.worker_id for grab, *_ in bench.broker.lent] == ["w2"]


async def test_nothing_is_lent_while_there_is_word_of_work(bench):
    bench.stores["s0"].open_door.clear()
    bench.grab("w1", 1)
    bench.grab("w2", 1)
    bench.nudge()
    await until(lambda: bench.claimer.is_claiming("t"))
    assert await bench.lent() == []


@pytest.mark.parametrize("why", ["limited", "paused", "away", "limits unknown", "nobody"])
async def test_nothing_is_lent_that_must_not_be(bench, why):
    await quiet(bench)
    if why == "limited":
        bench.types.set("t", TypeSettings("t", max_running=1))
    elif why == "paused":
        bench.board.pause("t")
    elif why == "away":
        bench.broker.connected = False
    elif why == "limits unknown":
        bench.types.synced = False
    else:
        bench.time.advance(RULES.memory + 1)
    assert await bench.lent() == []
    assert bench.board.book.credit_of("t") == 1


async def test_work_without_credit_recalls_what_was_lent(bench):
    await quiet(bench)
    await bench.lent()
    bench.board.found("s0", ["t"])
    await bench.passed()
    await bench.lender.run_once()
    assert bench.broker.recalls == ["t"]


async def test_work_of_the_borrower_itself_recalls_nothing(bench):
    await quiet(bench)
    await bench.lent()
    bench.time.advance(2 * CROSSING)
    bench.nudge()
    await bench.lender.run_once()
    assert bench.broker.recalls == []


async def test_a_type_that_gets_a_limit_is_recalled(bench):
    await quiet(bench)
    await bench.lent()
    bench.types.set("t", TypeSettings("t", max_running=1))
    await bench.lender.run_once()
    assert bench.broker.recalls == ["t"]


async def test_where_nothing_is_lent_nothing_is_recalled(bench):
    bench.nudge()
    await bench.lender.run_once()
    assert bench.broker.recalls == []


async def test_a_broker_that_is_away_stops_neither(bench):
    await quiet(bench)
    bench.broker.refuses = True
    await bench.lent()
    await bench.lender.recall("t")
