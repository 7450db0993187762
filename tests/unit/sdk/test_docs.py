"""The documents say what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jobmesh
import jobmesh.testing
import pytest
import typer.main
from jobmesh.cli.app import app
from jobmesh.options import NewJob

ROOT = Path(__file__).parents[3]
CLI = (ROOT / "docs" / "cli.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()

#: Said once at the top of the page, for all commands.
EVERYWHERE = {"--address", "--namespace", "--json", "--help"}


def commands(group: Any, prefix: str = "jobmesh") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    place = re.search(rf"(### |\| )`{name}\b", CLI)
    assert place, name
    section = CLI[place.start() + 4 :].split("\n### ")[0]
    for parameter in COMMANDS[name].params:
        flags = {flag for flag in parameter.opts if flag.startswith("--")} - EVERYWHERE
        said = [flag in section for flag in flags | set(parameter.secondary_opts)]
        assert not flags or any(said), f"{name} {flags}"


def test_no_command_is_documented_that_does_not_exist() -> None:
    said = set(re.findall(r"`jobmesh ((?:schedule|pool|shard|type) \w+|\w+)", CLI))
    known = {name.removeprefix("jobmesh ") for name in COMMANDS}
    assert said - known <= {"COMMAND"}


def test_every_option_of_enqueue_is_documented() -> None:
    options = [name for name, field in NewJob.__dataclass_fields__.items() if field.init]
    for field in options:
        assert f"`{field}`" in PYTHON or field in ("type", "input"), field


def test_what_python_md_imports_exists() -> None:
    for names in re.findall(r"from jobmesh import ([\w, ]+)", PYTHON):
        for name in names.split(", "):
            assert hasattr(jobmesh, name), name
    for names in re.findall(r"from jobmesh\.testing import ([\w, ]+)", PYTHON):
        for name in names.split(", "):
            assert hasattr(jobmesh.testing, name), name


@pytest.mark.parametrize("page", ["docs/cli.md", "docs/python.md", "examples/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
