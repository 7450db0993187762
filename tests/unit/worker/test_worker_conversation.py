"""Attached executors that do not listen."""

from __future__ import annotations

import pytest

from services.mesh.errors import SlowConsumer
from services.worker.app.conversation import MAX_UNREAD, AttachedExecutor
from services.worker.domain.guests import Guest


async def test_an_executor_that_talks_and_does_not_read_is_heard_no_more() -> None:
    end = AttachedExecutor(Guest("loud", ["x"]), on_change=lambda: None)
    for _ in range(MAX_UNREAD + 1):
        end.sign((b"not in hand", 1))
    with pytest.raises(SlowConsumer):
        end.sign((b"not in hand", 1))
