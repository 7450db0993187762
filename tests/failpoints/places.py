"""Every failpoint there is, as the services list them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from services.mesh.failpoints import Place

SERVICES = ("enqueue", "orchestrator", "scheduler", "worker", "scaler")


def places() -> Iterator[Place]:
    """All of them, service by service, in the order in which work passes them."""
    for service in SERVICES:
        yield from importlib.import_module(f"services.{service}.failpoints").PLACES
