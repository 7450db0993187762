"""Outputs that cannot be stored."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from services.mesh.blob.memory import MemoryBlobStore
from services.mesh.clock import SystemClock
from services.worker.adapters.objects import BlobObjects
from services.worker.app.courier import Courier
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import Failed
from services.worker.ports import Returned


@pytest.mark.parametrize("name", ["gone", "."])
async def test_a_file_that_a_handler_took_away_is_not_waited_for(tmp_path: Path, name: str) -> None:
    store = MemoryBlobStore()
    courier = Courier(BlobObjects(store, store), tmp_path, SystemClock(), patience=0.1)
    attempt = Attempt(uuid4().bytes, 1, "makes-file", "default", 1)
    ending = await courier.deliver(attempt, Returned(tmp_path / name, "text/plain"))
    assert isinstance(ending, Failed)
    assert ending.failure.type == "OutputUnreadable"
