"""The credit book keeps every worker's word, whatever the order of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.mesh.jobs.credit import CreditBook, Grab

PARK = 20.0


def grab(worker: str = "w1", type_: str = "t", credit: int = 10, number: int = 1) -> Grab:
    return Grab(worker, type_, credit, number, f"inbox.{worker}")


def test_grabs_are_served_in_the_order_in_which_they_came() -> None:
    book = CreditBook(PARK)
    for worker in ("w1", "w2", "w3"):
        book.park(grab(worker), 0.0)
    assert [taken.worker_id for _ in range(3) if (taken := book.take("t"))] == ["w1", "w2", "w3"]
    assert book.take("t") is None


def test_a_newer_grab_replaces_the_parked_one_and_keeps_its_place() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1", credit=1), 0.0)
    book.park(grab("w2"), 0.0)
    assert book.park(grab("w1", credit=7, number=2), 1.0)
    assert book.take("t") == grab("w1", credit=7, number=2)
    assert book.credit_of("t") == 10


def test_an_older_grab_does_not_replace_a_newer_one() -> None:
    book = CreditBook(PARK)
    book.park(grab(number=5), 0.0)
    assert not book.park(grab(number=4, credit=99), 0.0)
    assert book.credit_of("t") == 10


def test_a_grab_without_credit_withdraws_the_one_before() -> None:
    book = CreditBook(PARK)
    assert not book.park(grab(credit=0, number=1), 0.0)
    assert book.types() == []
    book.park(grab(credit=5, number=2), 0.0)
    assert not book.park(grab(credit=0, number=3), 0.0)
    assert book.types() == []


def test_the_number_of_parked_grabs_is_bounded() -> None:
    book = CreditBook(PARK, most=2)
    assert book.park(grab("w1"), 0.0)
    assert book.park(grab("w2"), 0.0)
    assert not book.park(grab("w3"), 0.0)
    assert book.park(grab("w2", credit=3, number=2), 0.0), "a replacement takes no more space"
    assert book.take("t") is not None
    assert book.park(grab("w3"), 0.0)


def test_a_claim_that_brought_nothing_costs_neither_credit_nor_place() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1"), 0.0)
    book.park(grab("w2"), 0.0)
    first = book.take("t")
    assert first is not None
    assert book.settle(first, 0) is None
    assert book.take("t") == first


def test_what_a_taken_grab_brought_is_subtracted_from_the_newer_one() -> None:
    book = CreditBook(PARK)
    book.park(grab(credit=10, number=1), 0.0)
    taken = book.take("t")
    assert taken is not None
    book.park(grab(credit=10, number=2), 0.0)
    assert book.take("t") is None, "one grab of a worker and type at a time"
    assert book.settle(taken, 4) is None
    assert book.take("t") == grab(credit=6, number=2)


def test_a_newer_grab_without_room_left_is_returned_for_an_empty_answer() -> None:
    book = CreditBook(PARK)
    book.park(grab(credit=10, number=1), 0.0)
    taken = book.take("t")
    assert taken is not None
    book.park(grab(credit=10, number=2), 0.0)
    assert book.settle(taken, 10) == grab(credit=10, number=2)
    assert book.types() == []


def test_spending_more_than_the_credit_is_refused() -> None:
    book = CreditBook(PARK)
    book.park(grab(credit=2), 0.0)
    taken = book.take("t")
    assert taken is not None
    with pytest.raises(ValueError, match="3 jobs sent on a credit of 2"):
        book.settle(taken, 3)


def test_parked_grabs_expire_and_taken_ones_do_not() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1"), 0.0)
    book.park(grab("w2"), 1.0)
    taken = book.take("t")
    assert taken is not None
    assert book.expire(PARK) == []
    book.settle(taken, 0)
    assert [late.worker_id for late in book.expire(PARK)] == ["w1"]
    assert [late.worker_id for late in book.expire(PARK + 1)] == ["w2"]


def test_a_lost_worker_s_grabs_are_dropped_and_do_not_come_back() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1"), 0.0)
    book.park(grab("w1", type_="u"), 0.0)
    taken = book.take("t")
    assert taken is not None
    assert book.drop_worker("w1") == 1
    assert book.settle(taken, 0) is None
    assert book.parked() == []


def test_a_lost_worker_s_grab_that_was_elsewhere_meanwhile_is_not_taken_in() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1"), 0.0)
    (lent,) = book.take_out("t")
    book.drop_worker("w1")
    assert not book.park(lent, 1.0)
    assert book.parked() == []


def test_of_lost_workers_it_remembers_no_more_than_it_may(monkeypatch) -> None:
    monkeypatch.setattr("services.mesh.jobs.credit.MOST_GONE", 2)
    book = CreditBook(PARK)
    for worker in ("w1", "w2", "w3"):
        book.drop_worker(worker)
    assert [book.park(grab(worker), 0.0) for worker in ("w1", "w2", "w3")] == [True, False, False]


def test_what_is_taken_out_leaves_other_types_and_taken_grabs_alone() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1"), 0.0)
    taken = book.take("t")
    book.park(grab("w2"), 0.0)
    book.park(grab("w2", type_="u"), 0.0)
    assert book.take_out("t") == [grab("w2")]
    assert (book.credit_of("t"), book.credit_of("u")) == (0, 10)
    assert taken is not None
    book.settle(taken, 0)
    assert book.take_out("t") == [grab("w1")]


def test_a_taken_grab_that_was_replaced_does_not_come_back() -> None:
    book = CreditBook(PARK)
    book.park(grab(number=1), 0.0)
    taken = book.take("t")
    assert taken is not None
    book.park(grab(number=2), 1.0)
    assert [late.number for late in book.expire(PARK + 1)] == [2]
    assert book.settle(taken, 0) is None
    assert book.parked() == []


class BookMachine(RuleBasedStateMachine):
    """Two workers, two types, any interleaving: nobody is ever sent more than it offered."""

    def __init__(self) -> None:
        super().__init__()
        self.book = CreditBook(PARK)
        self.now = 0.0
        self.number = 0
        self.in_hand: dict[tuple[str, str], Grab] = {}
        self.lives = {"a": 0, "b": 0}
        # What each worker and type may still be sent, if it counts as the worker does: its latest
        # word, less what arrived since.
        self.room: dict[tuple[str, str], int] = {}

    @rule(worker=st.sampled_from("ab"), type_=st.sampled_from("xy"), credit=st.integers(0, 5))
    def worker_grabs(self, worker: str, type_: str, credit: int) -> None:
        self.number += 1
        worker += str(self.lives[worker])
        asked = Grab(worker, type_, credit, self.number, "inbox")
        assert self.book.park(asked, self.now) == (credit > 0)
        self.room[worker, type_] = credit

    @rule(type_=st.sampled_from("xy"))
    def claim_begins(self, type_: str) -> None:
        taken = self.book.take(type_)
        if taken is not None:
            key = (taken.worker_id, type_)
            assert key not in self.in_hand
            self.in_hand[key] = taken

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def claim_ends(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_hand)))
        taken = self.in_hand.pop(key)
        used = data.draw(st.integers(0, taken.credit))
        full = self.book.settle(taken, used)
        if key not in self.room:
            return  # the worker is gone
        self.room[key] -= used
        if full is not None:
            assert self.room[key] <= 0
            del self.room[key]

    @rule(seconds=st.floats(0, 15))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for late in self.book.expire(self.now):
            self.room.pop((late.worker_id, late.type), None)

    @rule(worker=st.sampled_from("ab"))
    def worker_dies(self, worker: str) -> None:
        """It comes back as another one."""
        self.lives[worker] += 1
        worker += str(self.lives[worker] - 1)
        self.book.drop_worker(worker)
        for key in [key for key in self.room if key[0] == worker]:
            del self.room[key]
        for key in [key for key in self.in_hand if key[0] == worker]:
            del self.in_hand[key]

    @invariant()
    def what_is_parked_never_exceeds_the_room(self) -> None:
        for parked in self.book.parked():
            key = (parked.worker_id, parked.type)
            taken = self.in_hand.get(key)
            if taken is None:
                assert parked.credit <= self.room[key]

    @invariant()
    def the_sums_are_right(self) -> None:
        for type_ in "xy":
            credits = [g.credit for g in self.book.parked() if g.type == type_]
            assert self.book.credit_of(type_) == sum(credits)
            assert (type_ in self.book.types()) == bool(credits)


BookMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBookMachine = BookMachine.TestCase


def test_clear_returns_all_that_is_parked() -> None:
    book = CreditBook(PARK)
    book.park(grab("w1"), 0.0)
    book.park(replace(grab("w2"), type="u"), 0.0)
    assert {g.worker_id for g in book.clear()} == {"w1", "w2"}
    assert book.types() == []
    assert book.credit_of("t") == 0
