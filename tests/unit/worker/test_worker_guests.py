"""Attached executors: who is chosen, and how much there is room for."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from services.worker.domain.attempt import Attempt
from services.worker.domain.book import AttemptBook, Refused, Taken
from services.worker.domain.guests import MAX_TYPES, Guest, GuestBook

TYPES = st.sets(st.sampled_from("abc"), min_size=1)
GUESTS = st.lists(st.tuples(TYPES, st.integers(0, 4)), max_size=4)


def entered(book: GuestBook, *types: str, credit: int) -> Guest:
    guest = Guest("test", types)
    assert book.enter(guest)
    guest.credit = credit
    return guest


@given(GUESTS, st.lists(st.sampled_from("abc"), max_size=30))
def test_nobody_is_handed_more_than_it_said(guests, wanted):
    book = GuestBook()
    everybody = [entered(book, *types, credit=credit) for types, credit in guests]
    for number, type_ in enumerate(wanted):
        room = book.room(type_, 0)
        chosen = book.choose(type_, (b"%d" % number, 1))
        assert (chosen is not None) == (room > 0)
        assert chosen is None or type_ in chosen.types
    for guest in everybody:
        assert len(guest.in_hand) <= guest.credit
    assert book.in_hand == sum(len(guest.in_hand) for guest in everybody)


@given(GUESTS, st.integers(0, 20))
def test_what_waits_for_an_executor_takes_up_room(guests, waiting):
    book = GuestBook()
    for types, credit in guests:
        entered(book, *types, credit=credit)
    for type_ in "abc":
        assert book.room(type_, waiting) == max(0, book.capacity(type_) - waiting)


def test_the_one_with_the_most_room_is_chosen():
    book = GuestBook()
    entered(book, "a", credit=1)
    roomy = entered(book, "a", "b", credit=3)
    entered(book, "b", credit=9)
    assert book.choose("a", (b"1", 1)) is roomy


def test_less_credit_than_in_hand_is_no_room_and_no_debt():
    book = GuestBook()
    guest = entered(book, "a", credit=2)
    book.choose("a", (b"1", 1))
    guest.credit = 0
    entered(book, "a", credit=1)
    assert book.room("a", 0) == 1


def test_types_without_end_are_refused():
    book = GuestBook()
    for start in range(0, MAX_TYPES, 100):
        assert book.enter(Guest("", [f"t{n}" for n in range(start, start + 100)]))
    assert not book.enter(Guest("", ["one-more"]))
    assert book.enter(Guest("", ["t1"]))


def test_types_go_with_those_who_had_them():
    book = GuestBook()
    guest = entered(book, "a", "b", credit=2)
    assert book.capacities() == {"a": 2, "b": 2}
    book.leave(guest)
    assert book.capacities() == {}
    assert book.choose("a", (b"1", 1)) is None


# --- what is lent to the book of attempts


def attempt(type_: str, number: int = 1) -> Attempt:
    job_id = UUID(int=number)
    return Attempt(job_id.bytes, 1, type_, "default", 1)


def test_lent_types_are_taken_while_there_is_room_and_refused_afterwards():
    room = {"draw": 1}
    book = AttemptBook({"echo": 1}, 10)
    assert book.lend({"draw": 4}, lambda type_: room[type_])
    assert not book.lend({"draw": 4}, lambda type_: room[type_])
    assert isinstance(book.admit(attempt("draw")), Taken)
    room["draw"] = 0
    assert isinstance(book.admit(attempt("draw", 2)), Refused)
    assert book.room("echo") == 1
    assert book.lend({}, lambda type_: 0)
    assert (book.capacity, book.room("draw"), book.in_hand("draw")) == ({"echo": 1}, 0, 1)
    decision = book.admit(attempt("draw", 3))
    assert isinstance(decision, Refused)
    assert decision.ending.reason == "unknown type"
