"""How attempts end, in words that fit the contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mesh.jobs.retry import FailureKind
from services.worker.domain.attempt import Stop
from services.worker.domain.ending import (
    MAX_MESSAGE_BYTES,
    MAX_TRACEBACK_BYTES,
    Failed,
    HandedBack,
    crashed,
    ending_of_stop,
    failure,
    head,
    outcome_of,
    tail,
)


def test_a_run_timeout_is_a_failure_that_names_its_limit() -> None:
    ending = ending_of_stop(Stop.TIMEOUT, 2.5)
    assert isinstance(ending, Failed)
    assert (ending.failure.type, ending.failure.kind) == ("RunTimeout", FailureKind.TIMEOUT)
    assert "2.5 s" in ending.failure.message
    assert outcome_of(ending) == "timed_out"


def test_a_stale_attempt_is_not_reported() -> None:
    assert ending_of_stop(Stop.STALE, None) is None


@pytest.mark.parametrize("stop", [Stop.CANCELLED, Stop.OPERATOR, Stop.DRAIN])
def test_other_stops_give_the_attempt_back(stop: Stop) -> None:
    assert isinstance(ending_of_stop(stop, None), HandedBack)


def test_a_crash_tells_the_signal() -> None:
    ending = crashed(-11)
    assert ending.failure.exit_code == -11
    assert "signal 11" in ending.failure.message


@given(text=st.text(min_size=0, max_size=40_000))
def test_texts_are_cut_to_the_contract(text: str) -> None:
    cut = failure("X" * 500, text, text)
    assert len(cut.type) == 200
    assert len(cut.message.encode()) <= MAX_MESSAGE_BYTES
    assert len(cut.traceback.encode()) <= MAX_TRACEBACK_BYTES


@given(text=st.text(max_size=200), limit=st.integers(0, 100))
def test_cutting_keeps_the_beginning_or_the_end(text: str, limit: int) -> None:
    assert text.startswith(head(text, limit))
    assert text.endswith(tail(text, limit))


def test_a_text_that_no_wire_takes_is_replaced() -> None:
    assert failure("ValueError", "file \udcff").message == "file ?"
