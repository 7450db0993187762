"""What the documentation tells a reader to type exists, and can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from jobmesh.cli.app import app
from typer import TyperException

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for folder in (".", "docs", "examples", "services/*")
    for page in ROOT.glob(f"{folder}/*.md")
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
#: Ends what belongs to a command: a pipe, a redirection, a second command, a remark.
END = re.compile(r"\s(?:\||>|<|&&|;|#|&)\s?.*$")


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in FENCE.findall(page.read_text()):
        if language in languages:
            yield text


def commands() -> Iterator[tuple[str, str]]:
    """Every `jobmesh …` in a block of the documentation, with its page."""
    for page in PAGES:
        for text in blocks(page, "console", "bash", "sh", ""):
            for line in text.replace("\\\n", " ").splitlines():
                typed = line.strip().removeprefix("$ ")
                if typed.startswith("jobmesh "):
                    yield str(page.relative_to(ROOT)), END.sub("", f"{typed} ").strip()


COMMANDS = sorted(set(commands()))


def test_the_documentation_shows_commands() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_the_documentation_can_be_typed(page: str, command: str) -> None:
    words = shlex.split(command)[1:]
    found = typer.main.get_command(app)
    try:
        while isinstance(found, typer.core.TyperGroup) and words and words[0] in found.commands:
            found = found.commands[words.pop(0)]
        found.make_context(command, words)
    except typer.Exit:
        pass  # --help and --version
    except TyperException as error:
        pytest.fail(f"{page}: {command}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_documentation_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        compile(text, str(page), "exec")
