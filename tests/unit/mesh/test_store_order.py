"""Versions that stand the wrong way round in a shard's order."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.model import Position
from services.mesh.store.order import Standing, exchanged

A, B = UUID(int=1), UUID(int=2)


def order(*versions: tuple[UUID, int]) -> list[Standing]:
    return [(Position(100 + at, 1), job, version) for at, (job, version) in enumerate(versions)]


def test_where_versions_ascend_nothing_is_exchanged() -> None:
    assert exchanged(order((A, 1), (B, 4), (A, 2), (B, 5), (A, 3))) == {}


def test_two_that_stand_the_wrong_way_round_are_exchanged() -> None:
    found = exchanged(order((A, 1), (A, 3), (B, 7), (A, 2), (B, 8)))
    assert found == {Position(101, 1): (A, 2), Position(103, 1): (A, 3)}


def test_a_place_may_be_named_twice() -> None:
    twice = order((A, 3), (A, 2))
    assert exchanged(twice + twice) == exchanged(twice)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 9)), unique=True, max_size=18))
def test_every_version_stays_and_ascends(versions: list[tuple[UUID, int]]) -> None:
    standing = order(*versions)
    others = exchanged(standing)
    after = [others.get(place, (job, version)) for place, job, version in standing]
    assert sorted(after) == sorted(versions)
    for job in (A, B):
        its = [version for its, version in after if its == job]
        assert its == sorted(its)
