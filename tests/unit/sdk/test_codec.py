"""The codec: what JSON becomes, and how it says no."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmesh.codec import build, from_json, to_json, value_from
from jobmesh.errors import InputError, OutputError


class Fit(Enum):
    CROP = "crop"
    PAD = "pad"


@dataclass(frozen=True)
class Size:
    width: int
    height: int | None = None


@dataclass(frozen=True)
class Resize:
    url: str
    size: Size = Size(100)
    fit: Fit = Fit.CROP
    tags: tuple[str, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    mode: Literal["fast", "good"] = "fast"
    when: datetime | None = None
    day: date | None = None
    owner: UUID | None = None
    corners: tuple[int, int] = (0, 0)
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n <= 0:
            raise ValueError("n must be positive")


def test_a_dataclass_survives_the_round_trip() -> None:
    value = Resize(
        "cat.png",
        Size(3, 4),
        Fit.PAD,
        ("a", "b"),
        {"x": 1.5},
        "good",
        datetime(2026, 1, 2, tzinfo=UTC),
        date(2026, 1, 2),
        UUID(int=7),
        (1, 2),
        ["n"],
        {"k": [1, None]},
    )
    assert build(Resize, from_json(to_json(value))) == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"url": 3}, "url: expected str, got int"),
        ({}, "url: missing, Resize needs it"),
        ({"url": "u", "widht": 1}, "widht: unknown field"),
        ({"url": "u", "siz": {}}, "siz: unknown field, did you mean 'size'?"),
        ({"url": "u", "size": {"width": "3"}}, "size.width: expected int, got str"),
        ({"url": "u", "size": {"width": True}}, "size.width: expected int, got bool"),
        ({"url": "u", "size": {"width": 1, "height": "x"}}, "size.height: expected int or null"),
        ({"url": "u", "fit": "fill"}, "fit: expected one of 'crop', 'pad', got 'fill'"),
        ({"url": "u", "tags": ["a", 1]}, "tags[1]: expected str, got int"),
        ({"url": "u", "tags": "a"}, "tags: expected array, got str"),
        ({"url": "u", "weights": {"x": "y"}}, "weights.x: expected float, got str"),
        ({"url": "u", "weights": []}, "weights: expected object, got array"),
        ({"url": "u", "mode": "best"}, "mode: expected one of 'fast', 'good', got 'best'"),
        ({"url": "u", "when": "soon"}, "when: expected datetime or null, got str"),
        ({"url": "u", "corners": [1]}, "corners: expected 2 items, got 1"),
        ([], "input: expected object (Resize), got array"),
    ],
)
def test_a_wrong_value_is_refused_naming_the_field(value: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(Resize, value)
    assert str(caught.value).startswith(message)


def test_a_wrong_alternative_record_names_its_own_field() -> None:
    with pytest.raises(InputError, match="width: expected int, got str"):
        build(Size | None, {"width": "x"})


def test_a_check_of_the_dataclass_itself_becomes_an_input_error() -> None:
    with pytest.raises(InputError, match="input: n must be positive"):
        build(Positive, {"n": 0})


def test_no_bytes_are_a_dataclass_of_defaults_or_null() -> None:
    assert value_from(b"", Fit | None) is None
    with pytest.raises(InputError, match="width: missing"):
        value_from(b"", Size)


def test_bytes_that_are_no_json_are_refused_with_their_media_type() -> None:
    with pytest.raises(InputError, match="expected JSON, got other bytes \\(image/png\\)"):
        from_json(b"\x89PNG", "image/png")


@pytest.mark.parametrize("value", [object(), {"x": b"bytes"}, float("nan"), {1: {2, object()}}])
def test_a_value_without_json_form_is_refused(value: object) -> None:
    with pytest.raises(OutputError):
        to_json(value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_any_json_value_passes_unchanged_where_nothing_is_declared(value: object) -> None:
    assert build(Any, from_json(to_json(value))) == value


@given(json_values)
def test_a_declared_type_yields_that_type_or_an_input_error(value: object) -> None:
    try:
        built = build(dict[str, int] | list[str] | int, value)
    except InputError:
        return
    assert isinstance(built, (dict, list, int))


DEEP = b"[" * 100_000


@dataclass
class Tree:
    inner: Tree | None = None


def test_what_is_nested_too_deeply_is_refused_like_any_wrong_input() -> None:
    with pytest.raises(InputError, match="input: is nested too deeply"):
        from_json(DEEP)
    with pytest.raises(InputError, match="input: is nested too deeply"):
        value_from(b'{"inner":' * 600 + b"null" + b"}" * 600, Tree)
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(OutputError, match="nested too deeply"):
        to_json(value)


def test_an_integer_beyond_floats_is_refused() -> None:
    with pytest.raises(InputError, match="x: expected float, got an integer beyond"):
        build(dict[str, float], {"x": 10**400})


def test_keys_are_what_they_are_declared_to_be() -> None:
    assert build(dict[int, str], {"1": "a", "-2": "b"}) == {1: "a", -2: "b"}
    assert build(dict[date, int], {"2026-12-24": 1}) == {date(2026, 12, 24): 1}
    with pytest.raises(InputError, match=r"by\.x: expected an int for a key"):
        build(dict[int, str], {"x": "a"}, "by")


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    items: list[T]
    first: T | None = None
    next: str = ""


def test_a_generic_dataclass_is_built_for_what_it_is_of() -> None:
    assert build(Page[int], {"items": [1], "first": 1}) == Page([1], 1)
    assert build(Page[Size], {"items": [{"width": 1}]}) == Page([Size(1)])
    assert build(Page, {"items": [1, "a"]}) == Page([1, "a"])
    with pytest.raises(InputError, match=r"items\[0\]: expected int, got str"):
        build(Page[int], {"items": ["a"]})
