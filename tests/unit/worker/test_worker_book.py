"""The book of attempts: what is taken, what is refused, what is ignored."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.worker.domain.attempt import Attempt
from services.worker.domain.book import AttemptBook, Ignored, Refused, Taken
from services.worker.domain.foresight import most_ahead


def dispatch(job: int = 1, fence: int = 1, type_: str = "echo") -> Attempt:
    job_id = UUID(int=job)
    return Attempt(job_id.bytes, fence, type_, "default", 1)


def book(capacity: int = 2, max_unsettled: int = 10) -> AttemptBook:
    return AttemptBook({"echo": capacity}, max_unsettled)


def test_a_dispatch_takes_up_room_until_its_handler_ends() -> None:
    pages = book(capacity=2)
    attempt = dispatch()
    assert isinstance(pages.admit(attempt), Taken)
    assert pages.room("echo") == 1
    pages.end(attempt)
    assert pages.room("echo") == 2
    assert pages.unsettled == 1


def test_what_was_taken_ahead_of_room_is_counted() -> None:
    pages = book(capacity=2)
    attempts = [dispatch(job) for job in range(3)]
    for attempt in attempts:
        pages.admit(attempt)
    assert (pages.room("echo"), pages.spare("echo")) == (0, -1)
    pages.end(attempts[0])
    pages.end(attempts[1])
    assert (pages.room("echo"), pages.spare("echo")) == (1, 1)


def test_the_same_dispatch_starts_once() -> None:
    pages = book()
    attempt = dispatch()
    pages.admit(attempt)
    assert isinstance(pages.admit(dispatch()), Ignored)
    pages.end(attempt)
    assert isinstance(pages.admit(dispatch()), Ignored)
    pages.settle(attempt)
    assert isinstance(pages.admit(dispatch()), Ignored)


def test_a_refused_dispatch_is_not_taken_when_it_comes_again() -> None:
    pages = book(capacity=1)
    other = dispatch(job=2)
    pages.admit(other)
    for ahead in range(most_ahead(1)):
        assert isinstance(pages.admit(dispatch(job=3 + ahead)), Taken)
    refused = pages.admit(dispatch(job=1))
    assert isinstance(refused, Refused)
    assert refused.ending.reason == "no room"
    pages.end(other)
    assert isinstance(pages.admit(dispatch(job=1)), Ignored)


def test_a_newer_dispatch_of_a_job_that_ended_here_is_taken() -> None:
    pages = book()
    first = dispatch(fence=1)
    pages.admit(first)
    pages.end(first)
    assert isinstance(pages.admit(dispatch(fence=2)), Taken)


def test_a_newer_dispatch_of_a_job_that_runs_here_supersedes_it() -> None:
    pages = book()
    older = dispatch(fence=3)
    pages.admit(older)
    decision = pages.admit(dispatch(fence=4))
    assert isinstance(decision, Refused)
    assert decision.superseded is older
    assert decision.ending.delay > 0


def test_an_older_dispatch_than_the_one_in_hand_is_ignored() -> None:
    pages = book()
    pages.admit(dispatch(fence=4))
    assert isinstance(pages.admit(dispatch(fence=3)), Ignored)


def test_an_unknown_type_is_given_back() -> None:
    decision = book().admit(dispatch(type_="other"))
    assert isinstance(decision, Refused)
    assert decision.ending.reason == "unknown type"


def test_what_is_unsettled_bounds_the_room() -> None:
    pages = book(capacity=5, max_unsettled=2)
    attempts = [dispatch(job) for job in range(2)]
    for attempt in attempts:
        pages.admit(attempt)
        pages.end(attempt)
    assert pages.room("echo") == 0
    pages.settle(attempts[0])
    assert pages.room("echo") == 1


def test_room_for_every_type_appears_when_too_much_was_unsettled() -> None:
    pages = book(capacity=5, max_unsettled=2)
    attempts = [dispatch(job) for job in range(2)]
    for attempt in attempts:
        pages.admit(attempt)
        pages.end(attempt)
    assert pages.settle(attempts[0])
    assert not pages.settle(attempts[1])


def test_a_flood_of_dispatches_is_dropped_in_the_end() -> None:
    pages = book(capacity=1, max_unsettled=2)
    decisions = [pages.admit(dispatch(job, type_="other")) for job in range(20)]
    assert isinstance(decisions[0], Refused)
    assert isinstance(decisions[-1], Ignored)
    assert pages.unsettled == 8


def test_the_memory_of_ended_attempts_is_bounded() -> None:
    pages = AttemptBook({"echo": 1}, 10, memory=2)
    for job in range(4):
        attempt = dispatch(job)
        pages.admit(attempt)
        pages.end(attempt)
        pages.settle(attempt)
    assert isinstance(pages.admit(dispatch(3)), Ignored)
    assert isinstance(pages.admit(dispatch(0)), Taken)


class BookMachine(RuleBasedStateMachine):
    """Any order of arrivals and ends: bounds hold, and no dispatch starts twice."""

    def __init__(self) -> None:
        super().__init__()
        self.book = AttemptBook({"a": 2, "b": 3}, max_unsettled=6)
        self.running: list[Attempt] = []
        self.unsettled: list[Attempt] = []
        self.started: set[tuple[bytes, int]] = set()

    @rule(job=st.integers(0, 5), fence=st.integers(1, 4), type_=st.sampled_from("abc"))
    def arrives(self, job: int, fence: int, type_: str) -> None:
        attempt = dispatch(job, fence, type_)
        decision = self.book.admit(attempt)
        if isinstance(decision, Taken):
            assert (attempt.key, fence) not in self.started
            self.started.add((attempt.key, fence))
            self.running.append(attempt)
        elif isinstance(decision, Refused):
            self.unsettled.append(attempt)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        attempt = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.book.end(attempt)
        self.unsettled.append(attempt)

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def settles(self, data: st.DataObject) -> None:
        attempt = self.unsettled.pop(data.draw(st.integers(0, len(self.unsettled) - 1)))
        self.book.settle(attempt)

    @invariant()
    def counts_agree(self) -> None:
        assert self.book.in_hand() == len(self.running)
        assert self.book.unsettled == len(self.unsettled)
        for type_, capacity in self.book.capacity.items():
            held = sum(attempt.type == type_ for attempt in self.running)
            assert self.book.in_hand(type_) == held <= capacity + most_ahead(capacity)

    @invariant()
    def a_job_is_in_hand_once(self) -> None:
        assert len({attempt.key for attempt in self.running}) == len(self.running)


TestBook = BookMachine.TestCase
