"""The mutants still fit the code they break: one that no longer does would pass for healthy."""

from __future__ import annotations

import inspect

import pytest

from services.mesh.store.queries import Queries
from tests.mutants import breaking

SQL = [name for name, value in vars(breaking).items() if name.isupper() and value]


@pytest.mark.parametrize("name", SQL)
def test_the_pieces_that_a_mutant_replaces_stand_in_the_statements(name: str) -> None:
    assert breaking.changed(Queries.load(), getattr(breaking, name)) != Queries.load()


def test_a_piece_that_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="stands 0 times"):
        breaking.changed(Queries.load(), [("claim", "no such words", "")])


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        ("services.scheduler.app.claimer:Claimer", "_ask"),
        ("services.scheduler.app.sweeping:Sweeper", "run_once"),
        ("services.scheduler.app.rescuing:Rescuer", "run_once"),
        ("services.orchestrator.app.submission:Submission", "_settle"),
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
        ("services.orchestrator.app.submission:Submission", "_outcome"),
        ("services.orchestrator.app.changes:Changes", "_walk"),
    ],
)
def test_what_a_mutant_replaces_exists(owner: str, method: str) -> None:
    module, _, name = owner.partition(":")
    found = __import__(module, fromlist=["_"])
    found = getattr(found, name) if name else found
    assert callable(getattr(found, method))
    assert method in inspect.getsource(breaking)
