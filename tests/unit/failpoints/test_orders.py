"""What a failpoint can be told, and what it does not understand."""

from __future__ import annotations

import pytest

from services.mesh.failpoints import Action, Order, parse_order


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("kill", Order(Action.KILL)),
        ("kill@3", Order(Action.KILL, nth=3)),
        ("pause:10s", Order(Action.PAUSE, seconds=10)),
        ("pause:250ms@2+", Order(Action.PAUSE, seconds=0.25, nth=2, always=True)),
        ("delay:1.5", Order(Action.DELAY, seconds=1.5)),
        ("raise", Order(Action.RAISE)),
        ("raise:defect", Order(Action.RAISE, defect=True)),
        ("drop@1+", Order(Action.DROP, always=True)),
    ],
)
def test_an_order_is_read_and_written_the_same(text: str, order: Order) -> None:
    assert parse_order(text) == order
    assert parse_order(str(order)) == order


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no order"),
        ("explode", "is no order"),
        ("kill@0", "is no order"),
        ("kill@", "is no order"),
        ("kill:9", "takes no argument"),
        ("raise:often", "takes no argument"),
        ("pause", "needs a time"),
        ("pause:long", "needs a time"),
        ("pause:61m", "at most 3600"),
    ],
)
def test_a_bad_order_is_refused_with_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_order(text)
