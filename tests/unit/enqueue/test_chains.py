"""Items of one batch that wait for each other: every round waits only for the rounds before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.enqueue.domain.chains import MOST_ROUNDS, plan

#: What each item names: anything, also itself and later ones.
GRAPHS = st.lists(st.lists(st.integers(-2, 12), max_size=4), max_size=12)


@given(GRAPHS)
def test_every_item_is_in_one_round_after_its_parents_or_refused(graph: list[list[int]]) -> None:
    planned = plan(graph)
    rounds = {place: n for n, places in enumerate(planned.rounds) for place in places}
    assert sorted([*rounds, *planned.errors]) == list(range(len(graph)))
    assert sum(map(len, planned.rounds)) == len(rounds)
    for place, number in rounds.items():
        assert all(rounds.get(parent, -1) < number for parent in graph[place])
    for place, named in enumerate(graph):
        fine = all(0 <= parent < place for parent in named) and len(set(named)) == len(named)
        assert (place in planned.errors) != fine


def test_a_batch_without_parents_is_one_round() -> None:
    assert plan([[], [], []]).rounds == [[0, 1, 2]]


def test_a_chain_is_as_long_as_a_call_may_last() -> None:
    chain = [[], *([place] for place in range(MOST_ROUNDS))]
    planned = plan(chain)
    assert [len(places) for places in planned.rounds] == [1] * MOST_ROUNDS
    assert list(planned.errors) == [MOST_ROUNDS]
    assert "chain of more than 50" in str(planned.errors[MOST_ROUNDS])


def test_who_names_itself_a_later_one_or_one_twice_is_told_where() -> None:
    errors = plan([[0], [2], [], [2, 2]]).errors
    fields = {place: error.violations[0].field for place, error in errors.items()}
    first, second = "item_dependencies[0].item", "item_dependencies[1].item"
    assert fields == {0: first, 1: first, 3: second}
