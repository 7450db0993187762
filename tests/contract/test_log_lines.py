"""Every log line of the mesh: a stable `action`, and no field that collides with logging's own."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEVELS = {"info", "warning", "error", "exception", "critical"}
RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
FILES = sorted((ROOT / "services").rglob("*.py"))


def log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of a method of `log` that writes a line people will see in production."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("log", "logger")
        ):
            yield node


def literal_keys(node: ast.Dict) -> set[str]:
    return {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}


def test_there_are_log_lines_to_check() -> None:
    assert any(list(log_calls(ast.parse(path.read_text()))) for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_log_lines_have_an_action_and_clash_with_nothing(path: Path) -> None:
    for call in log_calls(ast.parse(path.read_text())):
        extra = next((word.value for word in call.keywords if word.arg == "extra"), None)
        where = f"{path.name}:{call.lineno}"
        assert extra is not None, f"{where}: no extra={{'action': …}}"
        if isinstance(extra, ast.Dict):
            assert "action" in literal_keys(extra) or None in extra.keys, f"{where}: no action"
            assert not literal_keys(extra) & RESERVED, f"{where}: reserved key"
