"""Places woven into a class: when they act, how often, and that they leave the rest alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.mesh.errors import DependencyUnavailable, InvalidField
from services.mesh.failpoints import Failpoints, Place, When
from services.mesh.failpoints.acting import Actor, DefectError
from services.mesh.failpoints.weaving import weave


def shop() -> type[Any]:
    """A class of its own for each test: weaving changes it."""

    class Shop:
        def __init__(self) -> None:
            self.done: list[str] = []

        async def sell(self, what: str) -> str:
            self.done.append(what)
            return f"sold {what}"

        def note(self, what: str) -> str:
            self.done.append(what)
            return f"noted {what}"

        async def goods(self) -> AsyncIterator[str]:
            for one in ("tea", "salt"):
                yield one

    return Shop


def opened(owner: type[Any], journal: Path | None = None) -> Failpoints:
    places = [
        Place("shop.sell.begins", "", owner, "sell", When.BEFORE, lossy=True),
        Place("shop.sell.done", "", owner, "sell", When.AFTER, lossy=True),
        Place("shop.note.begins", "", owner, "note", When.BEFORE, lossy=True),
        Place("shop.note.done", "", owner, "note", When.AFTER),
        Place("shop.goods.begins", "", owner, "goods", When.BEFORE),
        Place("shop.goods.each", "", owner, "goods", When.AFTER, lossy=True),
    ]
    failpoints = Failpoints("shop", places)
    weave(failpoints, Actor("shop-1", journal))
    return failpoints


async def test_an_unarmed_place_changes_nothing_and_counts() -> None:
    owner = shop()
    failpoints, one = opened(owner), owner()
    assert await one.sell("tea") == "sold tea"
    assert one.note("salt") == "noted salt"
    assert [item async for item in one.goods()] == ["tea", "salt"]
    hits = {view.name: (view.hits, view.fired) for view in failpoints.views()}
    assert hits["shop.sell.begins"] == hits["shop.note.done"] == (1, 0)
    assert hits["shop.goods.each"] == (2, 0)


async def test_an_order_strikes_on_the_nth_time_and_then_no_more() -> None:
    owner = shop()
    failpoints, one = opened(owner), owner()
    failpoints.arm("shop.sell.begins", "raise@2")
    await one.sell("a")
    with pytest.raises(DependencyUnavailable):
        await one.sell("b")
    await one.sell("c")
    assert one.done == ["a", "c"]
    assert [v.fired for v in failpoints.views() if v.name == "shop.sell.begins"] == [1]


async def test_an_order_with_a_plus_strikes_from_then_on_until_it_is_disarmed() -> None:
    owner = shop()
    failpoints, one = opened(owner), owner()
    failpoints.arm("shop.note.done", "raise:defect@1+")
    for _ in range(3):
        with pytest.raises(DefectError):
            one.note("x")
    assert failpoints.disarm("")
    assert not failpoints.disarm("")
    assert one.note("y") == "noted y"
    assert one.done == ["x", "x", "x", "y"]


async def test_a_drop_before_a_call_loses_the_call_and_after_it_the_answer() -> None:
    owner = shop()
    failpoints, one = opened(owner), owner()
    failpoints.arm("shop.sell.begins", "drop")
    assert await one.sell("a") is None
    failpoints.arm("shop.note.begins", "drop")
    assert one.note("b") is None
    failpoints.arm("shop.sell.done", "drop")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await one.sell("c")
    failpoints.arm("shop.goods.each", "drop")
    assert [item async for item in one.goods()] == ["salt"]
    assert one.done == ["c"]


async def test_a_delay_lets_others_pass() -> None:
    owner = shop()
    failpoints, one = opened(owner), owner()
    failpoints.arm("shop.sell.begins", "delay:30ms")
    await asyncio.gather(one.sell("slow"), one.sell("quick"))
    assert one.done == ["quick", "slow"]


async def test_what_acts_is_written_down_first(tmp_path: Path) -> None:
    owner, journal = shop(), tmp_path / "journal"
    failpoints, one = opened(owner, journal), owner()
    failpoints.arm("shop.goods.begins", "raise")
    with pytest.raises(DependencyUnavailable):
        await anext(one.goods())
    (line,) = [json.loads(text) for text in journal.read_text().splitlines()]
    assert (line["name"], line["order"], line["instance"]) == (
        "shop.goods.begins",
        "raise",
        "shop-1",
    )


def test_orders_of_other_services_are_passed_over_and_wrong_ones_of_ours_refused() -> None:
    failpoints = opened(shop())
    failpoints.arm_all({"mill.grind": "kill", "shop.note.done": "raise"})
    assert [view.name for view in failpoints.views() if view.order] == ["shop.note.done"]
    for name, order, words in (
        ("shop.nowhere", "kill", "no failpoint"),
        ("shop.note.done", "explode", "is no order"),
        ("shop.note.done", "drop", "nothing can be dropped"),
    ):
        with pytest.raises(InvalidField, match=words):
            failpoints.arm(name, order)


def test_a_place_in_a_method_that_does_not_exist_is_a_defect() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        Place("shop.steal", "", shop(), "steal", When.BEFORE)
