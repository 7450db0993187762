"""Lots that shall travel in columns do, and their jobs are known by what they carry."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from services.enqueue.servicer.familiar import shape_of
from tests.chaos.calls import Calls
from tests.chaos.evidence import Row
from tests.chaos.orders import ALIKE, SIZES, OrderBook

LINE: dict[str, Any] = dict.fromkeys(
    ("id", "shard", "namespace", "type", "state", "version", "dispatch_no", "attempt", "key")
) | dict.fromkeys(
    ("schedule", "nominal", "first_due", "created", "output", "output_ref", "input_ref", "labels")
)


@pytest.mark.parametrize("kind", ALIKE)
def test_of_a_lot_of_alike_ones_all_have_one_shape_and_their_own_inputs(kind: str) -> None:
    book = OrderBook(7, "ledger", ("blue",), {kind: 1})
    calls = Calls("c0", None, None, lambda job, namespace: None)  # type: ignore[arg-type]
    for lot in book.lots(80, lambda: False):
        items = asyncio.run(calls._items(lot))
        assert len(lot) == SIZES[kind]
        assert len({shape_of(item) for item in items}) == 1
        assert len({item.job.input.data for item in items}) == len(lot)
        keys = {item.idempotency_key for item in items}
        assert len(keys) == (len(lot) if kind == "alike_keyed" else 1)


@pytest.mark.parametrize(
    ("said", "ref"),
    [
        ({"labels": {"ref": "r1"}}, "r1"),
        ({"labels": {"lot": "l"}, "input": {"tag": "r2"}}, "r2"),
        ({"labels": None, "input": ["r3"]}, ""),
        ({"labels": {}}, ""),
    ],
)
def test_a_row_is_known_by_its_label_or_else_by_its_input(said: dict[str, Any], ref: str) -> None:
    if "input" in said:
        said = said | {"input": base64.b64encode(json.dumps(said["input"]).encode()).decode()}
    assert Row.of(LINE | said).ref == ref
