"""Calling handlers with what comes over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest
from jobmesh import (
    AttemptCancelled,
    Context,
    HandlerError,
    InputError,
    Output,
    OutputError,
    PermanentFailure,
    RetryAfter,
    invoke,
    invoke_async,
    job,
)
from jobmesh.context import Hooks
from jobmesh.testing import make_context


@dataclass
class Order:
    item: str
    count: int = 1


@job("order")
def order(given: Order, ctx: Context) -> dict[str, Any]:
    return {"item": given.item, "count": given.count, "attempt": ctx.attempt}


@job("upper")
def upper(text: bytes) -> bytes:
    return text.upper()


@job("lines")
def lines(text: Path, ctx: Context) -> Path:
    report = ctx.scratch / "lines.txt"
    report.write_text(str(len(text.read_text().splitlines())))
    return report


@job("nothing")
def nothing() -> None:
    return None


@job("greet")
async def greet(name: str = "world") -> str:
    return f"hello {name}"


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    context = make_context("test", attempt=2, scratch_root=tmp_path)
    yield context
    context.close()


def test_a_dataclass_parameter_is_built_from_json(ctx: Context) -> None:
    output = invoke(order.spec, b'{"item":"tea"}', "application/json", ctx)
    assert output == Output(b'{"item":"tea","count":1,"attempt":2}', "application/json")


def test_bytes_pass_as_they_are(ctx: Context) -> None:
    assert invoke(upper.spec, b"abc", "", ctx) == Output(b"ABC", "application/octet-stream")


def test_a_path_parameter_gets_a_file_and_a_returned_path_is_one(ctx: Context) -> None:
    output = invoke(lines.spec, b"a\nb\n", "", ctx)
    assert isinstance(output.content, Path)
    assert output.content.read_text() == "2"
    assert output.content_type == "text/plain"


def test_a_large_input_given_as_a_file_reaches_every_kind_of_handler(
    ctx: Context, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    file.write_bytes(b'{"item":"tea"}')
    assert invoke(upper.spec, file, "", ctx).content == b'{"ITEM":"TEA"}'
    assert b'"tea"' in bytes(invoke(order.spec, file, "", ctx).content)
    assert isinstance(invoke(lines.spec, file, "", ctx).content, Path)


def test_a_handler_without_input_ignores_it_and_none_is_empty(ctx: Context) -> None:
    assert invoke(nothing.spec, b"ignored", "", ctx) == Output(b"", "")


async def test_async_handlers_run_in_the_loop_with_their_defaults(ctx: Context) -> None:
    assert (await invoke_async(greet.spec, b"", "", ctx)).content == b'"hello world"'
    assert (await invoke_async(greet.spec, b'"you"', "", ctx)).content == b'"hello you"'


async def test_a_plain_handler_can_be_awaited_too(ctx: Context) -> None:
    assert (await invoke_async(upper.spec, b"x", "", ctx)).content == b"X"


def test_an_async_handler_is_not_called_by_the_plain_way(ctx: Context) -> None:
    with pytest.raises(HandlerError, match="is async"):
        invoke(greet.spec, b"", "", ctx)


def test_a_wrong_input_is_a_permanent_failure_that_names_the_field(ctx: Context) -> None:
    with pytest.raises(InputError, match="count: expected int, got str") as caught:
        invoke(order.spec, b'{"item":"tea","count":"2"}', "application/json", ctx)
    assert isinstance(caught.value, PermanentFailure)


def test_a_returned_path_must_be_a_file(ctx: Context) -> None:
    @job("ghost")
    def ghost() -> Path:
        return Path("does-not-exist")

    with pytest.raises(OutputError, match="not a file"):
        invoke(ghost.spec, b"", "", ctx)


def test_what_the_handler_raises_comes_out_as_it_is(ctx: Context) -> None:
    @job("later")
    def later() -> None:
        raise RetryAfter(30, "rate limited")

    with pytest.raises(RetryAfter) as caught:
        invoke(later.spec, b"", "", ctx)
    assert (caught.value.seconds, caught.value.message) == (30, "rate limited")


def test_a_signature_with_two_inputs_is_refused(ctx: Context) -> None:
    @job("two")
    def two(a: int, b: int) -> None: ...

    with pytest.raises(HandlerError, match="at most an input and a parameter"):
        invoke(two.spec, b"1", "", ctx)


def test_a_context_that_may_be_missing_is_given_all_the_same(ctx: Context) -> None:
    @job("either")
    def either(n: int, ctx: Context | None = None) -> int:
        return n if ctx is None else ctx.attempt

    @job("alone")
    def alone(ctx: Optional[Context] = None) -> bool:  # noqa: UP045 - as users write it, too
        return ctx is not None

    assert either(7) == 7
    assert invoke(either.spec, b"7", "", ctx).content == b"2"
    assert invoke(alone.spec, b"", "", ctx).content == b"true"


def test_the_input_goes_to_the_parameter_that_needs_it(ctx: Context) -> None:
    @job("scale")
    def scale(factor: int = 2, *, n: int) -> int:
        return factor * n

    assert invoke(scale.spec, b"4", "", ctx).content == b"8"


def test_the_context_knows_its_last_attempt() -> None:
    assert make_context(attempt=3, max_attempts=3).is_last_attempt
    assert not make_context(attempt=2, max_attempts=3).is_last_attempt
    assert not Context(job_id="j", type="t").is_last_attempt


def test_cancellation_is_a_flag_and_a_check() -> None:
    flags = [False]
    context = Context(job_id="j", type="t", hooks=Hooks(is_cancelled=lambda: flags[0]))
    context.check_cancelled()
    flags[0] = True
    assert context.cancelled
    with pytest.raises(AttemptCancelled):
        context.check_cancelled()


def test_the_scratch_folder_lives_from_first_use_to_close(tmp_path: Path) -> None:
    context = make_context(scratch_root=tmp_path)
    assert not list(tmp_path.iterdir())
    folder = context.scratch
    assert folder.is_dir()
    assert context.scratch == folder
    context.close()
    assert not folder.exists()
