"""The failpoints of the five services: real methods, names of their own, listed for people."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from services.mesh.failpoints import Failpoints, Place

ROOT = Path(__file__).parents[2]
SERVICES = ("enqueue", "orchestrator", "scheduler", "worker", "scaler")


def places(service: str) -> tuple[Place, ...]:
    module = importlib.import_module(f"services.{service}.failpoints")
    found: tuple[Place, ...] = module.PLACES
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_places_are_named_after_their_service_and_once(service: str) -> None:
    known = Failpoints(service, places(service)).points
    assert known
    assert all(re.fullmatch(r"[a-z]+(\.[a-z_]+)+", name) for name in known)


@pytest.mark.parametrize("service", SERVICES)
def test_what_may_be_lost_is_something_a_call_brings_or_sends(service: str) -> None:
    for place in places(service):
        method = inspect.getattr_static(place.owner, place.method)
        assert inspect.isfunction(method), place.name
        if place.lossy and place.when.value == "after":
            assert not inspect.isgeneratorfunction(method), place.name
            assert inspect.iscoroutinefunction(method), f"{place.name}: who would wait for it?"


@pytest.mark.parametrize("service", SERVICES)
def test_the_service_names_its_module_of_failpoints(service: str) -> None:
    main = importlib.import_module(f"services.{service}.main")
    assert f"services.{service}.failpoints" == main.FAILPOINTS


@pytest.mark.parametrize("service", SERVICES)
def test_every_place_stands_in_the_documentation(service: str) -> None:
    text = (ROOT / "docs/failpoints.md").read_text()
    missing = [place.name for place in places(service) if f"`{place.name}`" not in text]
    assert not missing, f"docs/failpoints.md: run python docs/failpoint_table.py ({missing})"
