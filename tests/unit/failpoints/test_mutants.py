"""The mutants still fit the code they break: one that no longer does would pass for healthy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from services.mesh.store.queries import Queries
from tests.mutants import breaking

#: What mutants replace: a class or a module, and what of it.
REPLACED = [
    ("services.scheduler.app.claimer:Claimer", "_ask"),
    ("services.scheduler.app.sweeping:Sweeper", "run_once"),
    ("services.scheduler.app.rescuing:Rescuer", "run_once"),
    ("services.orchestrator.app.storing:Storing", "_settle"),
    ("services.mesh.store.putting:Putting", "_put_new"),
    ("services.worker.adapters.objects", "output_key"),
    ("services.enqueue.app.watches", "read_resume_token"),
    ("services.mesh.store.connection", "connection_options"),
    ("services.scheduler.app.limits:Limits", "settings"),
    ("services.mesh.store.reporting", "settle_handed_back"),
    ("services.mesh.store.firing", "admit"),
    ("services.mesh.store.tying:Tying", "_replace"),
    ("services.mesh.store.tying:Tying", "_replace_for"),
    ("services.worker.convert", "_attempt"),
    ("services.orchestrator.app.storing:Storing", "_outcome"),
    ("services.orchestrator.app.changes:Changes", "_walk"),
    ("services.mesh.store.queries:Queries", "load"),
    ("services.mesh.store.changing", "LIVE"),
]
MUTANTS = [
    name
    for name, value in vars(breaking).items()
    if inspect.isfunction(value) and re.match(r"M\d+:", value.__doc__ or "")
]
SQL = [name for name, value in vars(breaking).items() if name.isupper() and value]


@pytest.mark.parametrize("name", SQL)
def test_the_pieces_that_a_mutant_replaces_stand_in_the_statements(name: str) -> None:
    assert breaking.changed(Queries.load(), getattr(breaking, name)) != Queries.load()


def test_a_piece_that_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        breaking.changed(Queries.load(), [("claim", "no such words", "")])


@pytest.mark.parametrize(("owner", "method"), REPLACED)
def test_what_a_mutant_replaces_exists(owner: str, method: str) -> None:
    assert hasattr(_found(owner), method)
    assert method in inspect.getsource(breaking)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_a_mutant_puts_in_place_is_called_as_what_stood_there(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {}
    for owner, method in REPLACED:
        before[owner, method] = inspect.getattr_static(_found(owner), method)
        monkeypatch.setattr(_found(owner), method, before[owner, method])  # and back afterwards
    getattr(breaking, mutant)()
    replaced = [
        (old, new)
        for (owner, method), old in before.items()
        if (new := inspect.getattr_static(_found(owner), method)) is not old
    ]
    assert replaced
    for old, new in replaced:
        if inspect.isfunction(old):
            _bind_as(old, new)


def _found(owner: str) -> Any:
    module, _, name = owner.partition(":")
    found = __import__(module, fromlist=["_"])
    return getattr(found, name) if name else found


def _bind_as(old: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Whatever calls the one can call the other."""
    taken = inspect.signature(old).parameters.values()
    inspect.signature(new).bind(
        *(one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD),
        **{one.name: one.name for one in taken if one.kind is one.KEYWORD_ONLY},
    )
