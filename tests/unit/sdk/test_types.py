"""Settings of types as users say them: keywords and flags to fields, answers to lines."""

from __future__ import annotations

import pytest
from grpc import StatusCode
from jobmesh import AsyncClient, Retry
from jobmesh.errors import CallError, Unavailable
from jobmesh.policies import to_retry_policy
from jobmesh.v1 import retry_pb2
from jobmesh.v1.type_settings_pb2 import TypeSettings

from services.mesh.errors import EtagMismatch
from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import Fault, MemoryMesh
from tests.unit.sdk.test_blocking_client import use


async def test_what_is_said_is_changed_and_the_rest_stays(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    await client.set_type_settings("echo", max_running=3, keep_succeeded="1d")
    found = await client.set_type_settings(
        "echo", retry=Retry.fixed("5s", attempts=4), run_timeout="2m"
    )
    assert (found.max_running, dict(found.keep)) == (3, {"succeeded": 86400})
    assert (found.retry, dict(found.timeouts)) == ("fixed from 5.0 s, 4 attempts", {"run": 120})
    gone = await client.set_type_settings("echo", retry=None, run_timeout=None, max_running=0)
    assert (gone.retry, gone.timeouts, gone.max_running) == ("", {}, 0)
    assert not mesh.type_settings["echo"].HasField("retry_policy")


async def test_a_change_meets_anothers_and_is_made_on_top_of_it(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    await client.set_type_settings("echo", max_running=1)
    mesh.faults["SetTypeSettings"] = [Fault(EtagMismatch("settings of type", "echo"))]
    assert (await client.set_type_settings("echo", max_running_per_key=2)).max_running == 1
    assert len(mesh.calls["GetTypeSettings"]) == 3


async def test_with_an_etag_only_what_was_read_is_changed(client: AsyncClient) -> None:
    first = await client.set_type_settings("echo", max_running=1)
    await client.set_type_settings("echo", max_running=2)
    with pytest.raises(CallError, match="changed since it was read"):
        await client.set_type_settings("echo", etag=first.etag, max_running=3)
    assert (await client.type_settings("echo")).max_running == 2


async def test_a_lost_answer_to_a_change_with_an_etag_is_not_told_as_anothers_change(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    first = await client.set_type_settings("echo", max_running=1)
    mesh.faults["SetTypeSettings"] = [Fault(StatusCode.UNAVAILABLE, after=True)]
    with pytest.raises(Unavailable):
        await client.set_type_settings("echo", etag=first.etag, max_running=2)
    assert len(mesh.calls["SetTypeSettings"]) == 2
    mesh.faults["SetTypeSettings"] = [Fault(StatusCode.UNAVAILABLE, after=True)]
    assert (await client.set_type_settings("echo", max_running=3)).max_running == 3


async def test_blocking_code_has_the_same_calls(address: str) -> None:
    def work(client):  # type: ignore[no-untyped-def]
        client.set_type_settings("echo", max_running=7)
        return client.type_settings("echo").max_running

    assert await use(address, work) == 7


async def test_the_command_sets_and_shows(run: Run, mesh: MemoryMesh) -> None:
    set_ = ("type", "set", "echo")
    ran = await run(*set_, "--max-running", "2", "--retry", "linear", "--keep-succeeded", "1d")
    assert ran.code == 0
    assert mesh.type_settings["echo"].retry_policy.backoff == retry_pb2.BACKOFF_LINEAR
    shown = (await run("type", "show", "echo")).out
    assert "max running          2" in shown
    assert "linear from 1.0 s, 5 attempts" in shown
    assert "keep succeeded       1d 00h" in shown
    ran = await run(*set_, "--keep-succeeded", "default", "--json")
    assert "succeeded" not in ran.lines[0].get("retention", {})


async def test_the_handlers_word_is_shown_where_no_other_holds(run: Run, mesh: MemoryMesh) -> None:
    asked = to_retry_policy(Retry.exponential(attempts=4))
    mesh.type_settings["echo"] = TypeSettings(type="echo", handler_retry_policy=asked)
    line = "retry                exponential from 1.0 s, 4 attempts (by the handler)\n"
    assert line in (await run("type", "show", "echo")).out
    assert (
        "retry                none\n" in (await run("type", "set", "echo", "--retry", "none")).out
    )
    assert line in (await run("type", "set", "echo", "--retry", "default")).out
    assert "retry                none\n" in (await run("type", "show", "other")).out


async def test_the_handlers_timeout_is_shown_where_no_other_holds(
    run: Run, mesh: MemoryMesh
) -> None:
    asked = TypeSettings(type="echo", handler_run_timeout={"seconds": 30})
    mesh.type_settings["echo"] = asked
    line = "run timeout          30.0 s (by the handler)\n"
    assert line in (await run("type", "show", "echo")).out
    shown = (await run("type", "set", "echo", "--run-timeout", "2m")).out
    assert "run timeout          2m 00s\n" in shown
    assert "by the handler" not in shown
    assert line in (await run("type", "set", "echo", "--run-timeout", "default")).out


async def test_a_set_that_says_nothing_or_nonsense_is_refused(run: Run, mesh: MemoryMesh) -> None:
    ran = await run("type", "set", "echo")
    assert ran.code == 2
    assert "--max-running" in ran.err
    ran = await run("type", "set", "echo", "--keep-failed", "soon")
    assert ran.code == 2
    assert "is not a span" in ran.err
    assert not mesh.type_settings


async def test_no_retries_said_outright_are_not_left_to_the_type(
    client: AsyncClient, mesh: MemoryMesh
) -> None:
    silent = await client.enqueue("echo")
    outright = await client.enqueue("echo", retries=0)
    assert not mesh.records[silent.id].job.spec.HasField("retry_policy")
    policy = mesh.records[outright.id].job.spec.retry_policy
    assert policy.backoff == retry_pb2.BACKOFF_NONE
