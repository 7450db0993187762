"""Handlers are tested without any server: the same codec, none of the mesh."""

import pytest
from jobmesh import InputError, PermanentFailure
from jobmesh.testing import make_context, run_job

from hello import Greeting, greet


def test_a_greeting_is_said_as_often_as_asked() -> None:
    assert run_job(greet, Greeting("you", times=2)) == "hello hello you"


def test_nobody_is_a_failure_no_retry_can_mend() -> None:
    with pytest.raises(PermanentFailure):
        run_job(greet, {"name": ""})


def test_a_wrong_input_is_refused_naming_the_field() -> None:
    with pytest.raises(InputError, match="times: expected int, got str"):
        run_job(greet, {"name": "you", "times": "2"})


def test_it_is_still_a_plain_function() -> None:
    assert greet(Greeting("you"), make_context()) == "hello you"
