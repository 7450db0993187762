"""On which clock tests run: those marked `jumping_time` on one that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.unit.orchestrator.jumping_time import JumpingLoop


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "jumping_time: runs on a loop that jumps to its next timer")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("jumping_time"):
        return {"jumping": JumpingLoop}
    return {"usual": asyncio.new_event_loop}
