"""Room that is used in parts: no worker is sent more than it has, whatever crosses what."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.mesh.jobs.credit import Grab
from services.orchestrator.domain.lent import AMPLE, LentBook, Part
from tests.unit.orchestrator.loan_fakes import grab


def sent(book: LentBook, jobs: int) -> Part:
    """A part of which all jobs were sent, as Loans does it."""
    part = book.take("t", jobs)
    assert part is not None
    answered = not book.leaves_more(part) and book.answer(part)
    book.settle(part, jobs, answered=answered)
    return part


def test_workers_are_served_in_turn() -> None:
    book = LentBook()
    for worker in ("w1", "w2", "w3"):
        book.put(grab(worker=worker))
    assert [sent(book, 1).grab.worker_id for _ in range(6)] == ["w1", "w2", "w3"] * 2


def test_who_has_too_little_room_is_passed_over_and_keeps_its_place() -> None:
    book = LentBook()
    book.put(grab(worker="small", credit=1))
    book.put(grab(worker="large"))
    assert [sent(book, jobs).grab.worker_id for jobs in (2, 1)] == ["large", "small"]


def test_small_grabs_are_answered_by_their_first_part() -> None:
    book = LentBook()
    book.put(grab(credit=AMPLE - 1))
    part = book.take("t", 1)
    assert part is not None
    assert not book.leaves_more(part)


def test_a_grab_that_comes_again_changes_nothing() -> None:
    book = LentBook()
    book.put(grab(credit=3))
    sent(book, 2)
    book.put(grab(credit=3))
    assert book.take("t", 2) is None
    assert book.take("t", 1) is not None


def test_a_newer_grab_without_any_room_is_returned_to_be_answered() -> None:
    book = LentBook()
    book.put(grab(credit=20))
    sent(book, 4)
    newer = grab(credit=4, number=2)
    assert book.put(newer) == newer, "it may have been written before those four were heard of"
    assert book.put(grab(credit=4, number=3)) is None
    assert book.take("t", 4) is not None


def test_what_may_not_have_been_heard_of_stays_so_through_several_grabs() -> None:
    book = LentBook()
    book.put(grab(credit=20))
    sent(book, 4)
    book.put(grab(credit=20, number=2))
    sent(book, 1)
    book.put(grab(credit=20, number=3))
    assert book.take("t", 16) is None
    assert book.take("t", 15) is not None


def test_a_worker_that_grabs_anew_while_its_answer_is_settled_has_heard_of_that() -> None:
    book = LentBook()
    book.put(grab(credit=20))
    part = book.take("t", 15)
    assert part is not None
    assert book.answer(part)
    book.put(grab(credit=20, number=2))
    after = book.take("t", 20)
    assert after is not None
    book.settle(part, 15, answered=True)
    assert book.take("t", 1) is None
    book.settle(after, 0)
    assert book.take("t", 20) is not None


def test_workers_that_have_had_much_room_are_asked_anew_when_they_say_little() -> None:
    book = LentBook()
    book.put(grab(credit=20))
    sent(book, 15)
    for number in (2, 3):
        little = grab(credit=5, number=number)
        book.put(little)
        assert book.expects("t", 10)
        assert not book.expects("t", 41)
        assert book.answer_scanty("t", 10) == [little]
        assert book.take("t", 10) is None
    book.put(grab(credit=20, number=4))
    assert book.answer_scanty("t", 10) == []
    assert book.take("t", 20) is not None


def test_a_grab_whose_answer_did_not_leave_is_open_again_wherever_that_sent_the_worker() -> None:
    book = LentBook()
    book.put(grab(credit=5))
    part = book.take("t", 2)
    assert part is not None
    assert book.answer(part, stays=False)
    assert book.take("t", 1) is None
    book.settle(part, 0, answered=True)
    assert book.take("t", 5) is not None


def test_what_is_withdrawn_is_not_given_out_and_what_puts_have_is_settled() -> None:
    book = LentBook()
    book.put(grab(credit=3))
    part = book.take("t", 1)
    assert part is not None
    book.put(grab(credit=0))
    assert book.take("t", 1) is None
    book.settle(part, 0)
    assert book.take("t", 1) is None
    assert book.take_out("t") == []


def test_a_withdrawal_of_what_never_came_is_forgotten() -> None:
    book = LentBook()
    book.put(grab(credit=0))
    assert book.put(grab(credit=1)) is None
    assert book.take("t", 1) is not None


def test_more_than_the_room_is_refused() -> None:
    book = LentBook()
    book.put(grab(credit=2))
    part = book.take("t", 2)
    assert part is not None
    with pytest.raises(ValueError, match="3 jobs sent on room for 2"):
        book.settle(part, 3)


class Worker:
    """Has room, and writes grabs; messages to it and from it are on their way for a while."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.capacity, self.in_hand = name, capacity, 0
        self.number, self.waits = 0, False
        self.inbox: list[tuple[int, int, bool]] = []
        self.outbox: list[Grab] = []

    def grabs(self) -> None:
        self.number += 1
        self.waits = True
        credit = self.capacity - self.in_hand
        self.outbox.append(Grab(self.name, "t", credit, self.number, "inbox"))

    def hears(self) -> None:
        number, jobs, more = self.inbox.pop(0)
        self.in_hand += jobs
        if number == self.number and not more:
            self.waits = False


class LentMachine(RuleBasedStateMachine):
    """A small worker and a large one; grabs and dispatches cross each other, rights end."""

    def __init__(self) -> None:
        super().__init__()
        self.book = LentBook()
        self.workers = {"a": Worker("a", 3), "b": Worker("b", 2 * AMPLE)}
        self.parts: list[Part] = []
        #: Sent, but the book does not know how it went.
        self.sending: list[tuple[Part, int, bool]] = []

    def _send(self, name: str, number: int, jobs: int, more: bool) -> None:
        self.workers[name].inbox.append((number, jobs, more))

    @rule(name=st.sampled_from("ab"))
    def grabs_when_it_has_room(self, name: str) -> None:
        worker = self.workers[name]
        while worker.inbox and worker.waits:
            worker.hears()
        if not worker.waits and worker.in_hand < worker.capacity:
            worker.grabs()

    @rule(name=st.sampled_from("ab"))
    def arrives(self, name: str) -> None:
        worker = self.workers[name]
        if worker.outbox:
            full = self.book.put(worker.outbox.pop(0))
            if full is not None:
                self._send(name, full.number, 0, False)

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def puts_begin(self, sizes: list[int]) -> None:
        for size in sizes:
            part = self.book.take("t", size)
            if part is not None:
                self.parts.append(part)

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def quick_puts(self, sizes: list[int]) -> None:
        for size in sizes:
            part = self.book.take("t", size)
            if part is not None:
                self._ends(part, size)

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def a_put_ends(self, data: st.DataObject) -> None:
        part = self.parts.pop(data.draw(st.integers(0, len(self.parts) - 1)))
        self._ends(part, data.draw(st.integers(0, part.room)))

    def _ends(self, part: Part, used: int) -> None:
        self._settles(part, used, self._sends(part, used))

    def _sends(self, part: Part, used: int) -> bool:
        answered = False
        if used:
            more = self.book.leaves_more(part)
            answered = not more and self.book.answer(part)
            self._send(part.grab.worker_id, part.grab.number, used, more)
        return answered

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def a_put_is_sent(self, data: st.DataObject) -> None:
        """What it took is settled later: its worker may have heard of it, and grabbed anew."""
        part = self.parts.pop(data.draw(st.integers(0, len(self.parts) - 1)))
        used = data.draw(st.integers(1, part.room))
        self.sending.append((part, used, self._sends(part, used)))

    @precondition(lambda self: self.sending)
    @rule(data=st.data())
    def a_put_is_settled(self, data: st.DataObject) -> None:
        self._settles(*self.sending.pop(data.draw(st.integers(0, len(self.sending) - 1))))

    def _settles(self, part: Part, used: int, answered: bool) -> None:
        full = self.book.settle(part, used, answered=answered)
        if full is not None:
            self._send(full.worker_id, full.number, 0, False)

    @rule(name=st.sampled_from("ab"))
    def hears(self, name: str) -> None:
        if self.workers[name].inbox:
            self.workers[name].hears()

    @rule(name=st.sampled_from("ab"), jobs=st.integers(1, 8))
    def jobs_end(self, name: str, jobs: int) -> None:
        worker = self.workers[name]
        worker.in_hand -= min(jobs, worker.in_hand)

    @rule(jobs=st.integers(0, 40))
    def a_right_ends_and_a_scheduler_uses_what_it_gets(self, jobs: int) -> None:
        for given in self.book.take_out("t"):
            self._send(given.worker_id, given.number, min(jobs, given.credit), False)

    @rule(name=st.sampled_from("ab"), jobs=st.integers(0, 40), lent=st.booleans())
    def one_grab_goes_to_a_scheduler_and_may_come_back(
        self, name: str, jobs: int, lent: bool
    ) -> None:
        """As a right is renewed."""
        worker = self.workers[name]
        given = self.book.take_out_of(Grab(name, "t", 1, worker.number, "inbox"))
        if given is not None and lent:
            full = self.book.put(given)
            assert full is None
        elif given is not None:
            self._send(name, given.number, min(jobs, given.credit), False)

    @rule(count=st.integers(1, 40))
    def those_with_little_room_are_asked_anew(self, count: int) -> None:
        for answered in self.book.answer_scanty("t", count):
            self._send(answered.worker_id, answered.number, 0, False)

    @invariant()
    def nobody_has_or_gets_more_than_it_has_room_for(self) -> None:
        for worker in self.workers.values():
            on_its_way = sum(jobs for _, jobs, _ in worker.inbox)
            assert worker.in_hand + on_its_way <= worker.capacity

    @invariant()
    def who_waits_is_answered_or_may_be(self) -> None:
        """Nobody waits for an answer that nobody can give."""
        for worker in self.workers.values():
            if worker.waits and not worker.outbox and not worker.inbox:
                parts = [*self.parts, *(part for part, _, _ in self.sending)]
                open_here = any(part.grab.worker_id == worker.name for part in parts)
                assert open_here or self._has_open(worker)

    def _has_open(self, worker: Worker) -> bool:
        lent = self.book._lent.get("t", {}).get(worker.name)
        return lent is not None and not lent.answered and lent.left > 0


LentMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestLentMachine = LentMachine.TestCase
