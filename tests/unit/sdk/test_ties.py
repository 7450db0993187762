"""Dependencies and unique keys as they are said in Python and on the command line."""

from __future__ import annotations

from typing import Any

import pytest
from jobmesh import After, NewJob, Unique
from jobmesh.cli.tie_options import parse_after, parse_unique
from jobmesh.client.submission import to_spec
from jobmesh.v1 import job_pb2
from jobmesh.v1.payload_pb2 import Payload


class Handle:
    id = "h"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((), []),
        ("a", [("a", 1)]),
        (Handle(), [("h", 1)]),
        (After("a", "run"), [("a", 2)]),
        (["a", Handle(), After(Handle(), "fail")], [("a", 1), ("h", 1), ("h", 3)]),
        ((name for name in "ab"), [("a", 1), ("b", 1)]),
    ],
)
def test_what_to_wait_for_may_be_said_in_many_ways(after: Any, expected: Any) -> None:
    spec = to_spec(NewJob("echo", after=after), Payload())
    assert [(one.job_id, one.on_failure) for one in spec.dependencies] == expected


@pytest.mark.parametrize(
    ("unique", "key", "policy"),
    [
        (None, "", job_pb2.UNIQUE_POLICY_UNSPECIFIED),
        ("k", "k", job_pb2.UNIQUE_POLICY_KEEP),
        (Unique("k", "replace"), "k", job_pb2.UNIQUE_POLICY_REPLACE),
        (Unique("k", "refuse"), "k", job_pb2.UNIQUE_POLICY_REFUSE),
    ],
)
def test_a_unique_key_goes_with_its_policy(unique: Any, key: str, policy: int) -> None:
    spec = to_spec(NewJob("echo", unique=unique), Payload())
    assert (spec.unique_key, spec.unique_policy) == (key, policy)


def test_an_unknown_policy_names_the_choices() -> None:
    with pytest.raises(ValueError, match="cancel, run, fail"):
        After("a", "never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep, replace, refuse"):
        Unique("k", "never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        to_spec(NewJob("echo", unique=""), Payload())


def test_after_on_the_command_line() -> None:
    assert parse_after(None) == []
    assert parse_after(["a", "b:run"]) == [After("a"), After("b", "run")]
    for bad in ("", ":run", "a:never", "a:run:run"):
        with pytest.raises(ValueError, match="--after"):
            parse_after([bad])


def test_unique_on_the_command_line() -> None:
    assert parse_unique(None) is None
    assert parse_unique("k") == Unique("k")
    assert parse_unique("k:replace") == Unique("k", "replace")
    assert parse_unique("a:b") == Unique("a:b")
    assert parse_unique("a:b:keep") == Unique("a:b")
    assert parse_unique("a:b:refuse") == Unique("a:b", "refuse")
    for bad in ("", ":keep"):
        with pytest.raises(ValueError, match="--unique"):
            parse_unique(bad)


def test_a_misspelt_policy_is_no_part_of_the_key() -> None:
    with pytest.raises(ValueError, match=r"did you mean replace\? If not, say daily:replac:keep"):
        parse_unique("daily:replac")
