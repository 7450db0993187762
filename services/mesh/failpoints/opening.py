"""The failpoints of a process that is allowed to have some, at boot."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path

from services.mesh.failpoints.acting import Actor
from services.mesh.failpoints.registry import Failpoints
from services.mesh.failpoints.weaving import weave

log = logging.getLogger(__name__)

#: The name under which a service's module of failpoints lists its places.
PLACES = "PLACES"


def open_failpoints(
    service: str, instance: str, module: str, orders: Mapping[str, str], journal: str | None
) -> Failpoints:
    """Load the places of a service, weave them in and arm those that orders name.

    Raises InvalidField if an order for this service cannot be taken.
    """
    failpoints = Failpoints(service, getattr(importlib.import_module(module), PLACES))
    failpoints.arm_all(orders)
    weave(failpoints, Actor(instance, Path(journal) if journal else None))
    extra = {"action": "failpoints_enabled", "count": len(failpoints.points)}
    log.warning("this process has failpoints: it is no production process", extra=extra)
    return failpoints


def turn_into(mutant: str) -> None:
    """Break this process in the way that `module:function` does."""
    module, _, function = mutant.partition(":")
    getattr(importlib.import_module(module), function)()
    log.warning("this process is a mutant: %s", mutant, extra={"action": "mutant"})
