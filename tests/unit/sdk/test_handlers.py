"""Decorated functions, apps, and finding them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from jobmesh import App, HandlerError, JobFunction, Retry, job, load_handlers
from jobmesh import examples as example_jobs


def test_a_decorated_function_stays_callable() -> None:
    @job("add", retries=2)
    def add(n: int) -> int:
        """Adds one."""
        return n + 1

    assert add(1) == 2
    assert add.__doc__ == "Adds one."
    assert (add.spec.type, add.spec.retries, add.spec.is_async) == ("add", 2, False)


def test_the_type_defaults_to_the_function_name() -> None:
    @job()
    async def send_mail() -> None: ...

    assert send_mail.spec.type == "send-mail"
    assert send_mail.spec.is_async


@pytest.mark.parametrize("name", ["Resize", "-x", "x.", "a b", "x" * 64])
def test_a_type_the_contract_forbids_is_refused(name: str) -> None:
    with pytest.raises(HandlerError, match="is not allowed"):
        job(name)(lambda: None)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"retries": -1}, "negative"),
        ({"capacity": 0}, "capacity"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "30s"}, "timeout must be a positive number of seconds, not '30s'"),
        ({"timeout": float("inf")}, "timeout must be a positive number"),
        ({"retries": "3"}, "retries must be a number, not negative: '3'"),
        ({"retries": 1, "retry": Retry.fixed()}, "not both"),
        ({"retries": 1000}, "at most 1000 attempts in all, not 1001"),
        ({"retry": Retry.fixed(attempts=1001)}, "at most 1000 attempts"),
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, Any], why: str) -> None:
    for decorate in (job("x", **wrong), App("demo").job("x", **wrong)):
        with pytest.raises(HandlerError, match=why):
            decorate(lambda: None)


def test_a_decorator_without_parentheses_is_told_at_once() -> None:
    def resize(n: int) -> int:
        return n

    for decorator in (job, App("demo").job):
        with pytest.raises(HandlerError, match=r"@job above resize: write @job\(\)"):
            decorator(resize)  # type: ignore[arg-type]


def test_a_handler_asks_for_retries_in_short_or_in_full() -> None:
    app, full = App("demo"), Retry.fixed("5s", attempts=1000)
    assert job("x")(lambda: None).spec.asked_retry is None
    assert job("x", retries=999)(lambda: None).spec.asked_retry == Retry.exponential(attempts=1000)
    assert job("x", retry=full)(lambda: None).spec.asked_retry == full
    assert app.job("x", retry=full)(lambda: None).spec.asked_retry == full


def test_the_shipped_examples_load() -> None:
    handlers = load_handlers("jobmesh.examples")
    assert set(handlers) == {"echo", "primes", "wordcount", "nap", "pause", "flaky"}
    assert handlers["echo"] is example_jobs.echo.spec


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert set(sys.modules) == before
    return tmp_path


def test_an_app_selects_its_own_handlers(module_folder: Path) -> None:
    (module_folder / "shop.py").write_text(
        "import jobmesh\n"
        "app = jobmesh.App('shop')\n"
        "other = jobmesh.App('other')\n"
        "@app.job('order')\ndef order(): ...\n"
        "@other.job('bill')\ndef bill(): ...\n"
    )
    assert set(load_handlers("shop:app")) == {"order"}
    assert set(load_handlers("shop")) == {"order", "bill"}
    with pytest.raises(HandlerError, match="is not a jobmesh"):
        load_handlers("shop:nothing")


def test_two_handlers_of_one_type_are_refused(module_folder: Path) -> None:
    (module_folder / "twice.py").write_text(
        "import jobmesh\n@jobmesh.job('x')\ndef a(): ...\n@jobmesh.job('x')\ndef b(): ...\n"
    )
    with pytest.raises(HandlerError, match="two handlers of type 'x'"):
        load_handlers("twice")


def test_a_missing_module_and_an_empty_one_say_what_to_do(module_folder: Path) -> None:
    (module_folder / "empty_app.py").write_text("")
    with pytest.raises(HandlerError, match="cannot import app module 'no_such_app'"):
        load_handlers("no_such_app")
    with pytest.raises(HandlerError, match="has no handlers"):
        load_handlers("empty_app")


def test_a_missing_import_inside_the_module_is_not_disguised(module_folder: Path) -> None:
    (module_folder / "broken_app.py").write_text("import no_such_library\n")
    with pytest.raises(HandlerError, match="no_such_library"):
        load_handlers("broken_app")
    (module_folder / "absent_jobs.py").write_text("import absent\n")
    with pytest.raises(HandlerError, match="No module named 'absent'"):
        load_handlers("absent_jobs")


def test_an_app_collects_what_it_decorated() -> None:
    app = App("demo")

    @app.job("x")
    def x() -> None: ...

    assert app.functions == [x]
    assert isinstance(x, JobFunction)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\nraise ValueError('boom')", r"ValueError: boom \(.*broken\.py, line 2\)"),
        ("\ndef (:", r"SyntaxError: invalid syntax \(.*broken\.py, line 2\)"),
        ("import no_such_thing", r"No module named 'no_such_thing' \(.*broken\.py, line 1\)"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why_and_where(
    module_folder: Path, text: str, why: str
) -> None:
    (module_folder / "broken.py").write_text(text)
    with pytest.raises(HandlerError, match=f"cannot import app module 'broken': .*{why}"):
        load_handlers("broken")
