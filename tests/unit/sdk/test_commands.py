"""Commands: what may be said about a program that serves a type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmesh import App, Command, HandlerError, load_commands, load_handlers
from jobmesh.commands import parse_commands


def test_placeholders_stand_for_files() -> None:
    command = Command("x", ("prog", "--in={input}", "{output}", "{input}{output}"))
    assert command.arguments("I", "O") == ["prog", "--in=I", "O", "IO"]
    assert (command.reads_file, command.writes_file) == (True, True)
    assert not Command("x", ("prog", "{other}")).reads_file


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"argv": ()}, "names no program"),
        ({"argv": ("",)}, "names no program"),
        ({"argv": ("a\0b",)}, "NUL"),
        ({"type": "Not Allowed"}, "is not allowed"),
        ({"capacity": 0}, "capacity"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
    ],
)
def test_a_command_nobody_can_run_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(HandlerError, match=said):
        Command(**{"type": "x", "argv": ("true",)} | fields)


def test_commands_read_from_json_in_three_forms() -> None:
    text = json.dumps(
        {
            "line": "sh -c 'exit 3'",
            "words": ["echo", "a b"],
            "object": {"argv": "wc -w", "timeout": 5, "environ": {"A": "1"}},
        }
    )
    found = parse_commands(text)
    assert found["line"].argv == ("sh", "-c", "exit 3")
    assert found["words"].argv == ("echo", "a b")
    assert found["object"] == Command("object", ("wc", "-w"), timeout=5, environ={"A": "1"})
    assert parse_commands("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"x": 1}',
        '{"x": [1]}',
        '{"x": "unclosed \'"}',
        '{"x": {}}',
        '{"x": {"argv": "true", "colour": "red"}}',
        '{"x": {"argv": "true", "environ": 3}}',
        '{"x": {"argv": "true", "timeout": "soon"}}',
        '{"X Y": "true"}',
    ],
)
def test_commands_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(HandlerError):
        parse_commands(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
FIELDS = st.sampled_from(["argv", "timeout", "capacity", "directory", "environ", "content_type"])


@given(st.dictionaries(st.sampled_from(["a", "b", "A"]), JSON | st.dictionaries(FIELDS, JSON)))
def test_whatever_is_said_is_a_command_or_refused_in_words(value: dict[str, Any]) -> None:
    try:
        found = parse_commands(json.dumps(value))
    except HandlerError:
        return
    assert set(found) == set(value)


def test_an_app_has_commands_beside_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "programs_app.py").write_text(
        "import jobmesh\n"
        "app = jobmesh.App('programs')\n"
        "count = app.command('count', ['wc', '-w'], capacity=2)\n"
        "@app.job('order')\ndef order(): ...\n"
    )
    assert set(load_handlers("programs_app")) == {"order"}
    assert load_commands("programs_app:app")["count"].capacity == 2
    (tmp_path / "twice_app.py").write_text(
        "import jobmesh\n"
        "app = jobmesh.App('programs')\n"
        "app.command('order', ['wc', '-w'])\n"
        "@app.job('order')\ndef order(): ...\n"
    )
    with pytest.raises(HandlerError, match="two handlers of type 'order'"):
        load_handlers("twice_app")


def test_a_line_is_not_taken_for_words() -> None:
    with pytest.raises(HandlerError, match="list of words"):
        App("x").command("x", "wc -w")
