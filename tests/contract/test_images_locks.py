"""requirements/*.txt hold what pyproject.toml asks for: pinned, hashed, from no named place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ("dev", "local", "enqueue", "orchestrator", "scheduler", "worker", "scaler")
PIN = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(?P<version>[^ ;\\]+)(?P<rest>.*)$")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def asked_for(extra: str) -> Iterator[Requirement]:
    """What an extra needs, its own extras followed, with what everybody needs."""
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for inner in requirement.extras:
                yield from asked_for(inner)
        else:
            yield requirement


def entries(lock: str) -> list[str]:
    """One line per requirement, its hashes on the same line."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pins(lock: str) -> dict[str, str]:
    found = [PIN.match(entry) for entry in entries(lock)]
    return {canonicalize_name(m["name"]): m["version"] for m in found if m is not None}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_all_that_its_extra_asks_for(lock: str) -> None:
    pinned = pins(lock)
    wanted = [*map(Requirement, PROJECT["dependencies"]), *asked_for(lock)]
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} is not in requirements/{lock}.txt: run make lock"
        assert requirement.specifier.contains(pinned[name], prereleases=True), requirement


@pytest.mark.parametrize("lock", [*LOCKS, "uv"])
def test_every_entry_of_a_lock_is_pinned_and_hashed_and_names_no_place(lock: str) -> None:
    for entry in entries(lock):
        assert PIN.match(entry), f"not pinned: {entry[:80]}"
        assert "--hash=sha256:" in entry, f"no hash: {entry[:80]}"
        assert "://" not in entry
        assert not entry.startswith("-"), f"an option of pip: {entry[:80]}"


def test_all_locks_agree_on_their_versions() -> None:
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, version in pins(lock).items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
