"""What is told about a worker that died at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.scaler.adapters.process.last_words import last_words


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("hello\nbye\n\n", "bye"),
        ("Traceback:\n  x\nModuleNotFoundError: no shop\n", "ModuleNotFoundError: no shop"),
        (
            "03:15:44.770 error   worker cannot start: no type 'fry'\n"
            "03:15:44.776 info    worker stopped  seconds=0.006\n",
            "cannot start: no type 'fry'",
        ),
        (
            '{"level": "error", "message": "cannot start: no type"}\n'
            '{"level": "info", "message": "stopped"}\n',
            "cannot start: no type",
        ),
        ("{not json\n", "{not json"),
    ],
)
def test_last_words_are_the_last_complaint(tmp_path: Path, log: str, words: str) -> None:
    file = tmp_path / "worker.log"
    file.write_text(log)
    assert last_words(file) == words


def test_log_that_is_gone_says_nothing(tmp_path: Path) -> None:
    assert last_words(tmp_path / "nothing.log") == ""


def test_words_are_few(tmp_path: Path) -> None:
    file = tmp_path / "worker.log"
    file.write_text("first\n" * 10_000 + "error " * 1000)
    assert len(last_words(file)) == 300
