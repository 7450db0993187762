"""What attached executors may not do: refused with a reason, and no harm to others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from jobmesh.v1 import orchestrator_service_pb2 as orchestrator
from jobmesh.v1 import worker_service_pb2 as pb
from jobmesh.v1.enqueue_service_pb2 import LogLine
from jobmesh.v1.job_pb2 import Failure, Progress
from jobmesh.v1.payload_pb2 import ObjectRef, Payload

from services.mesh.errors import AttachRefused, Code, InvalidField, MeshError
from tests.integration.attach_rig import (  # noqa: F401
    Executor,
    attach,
    handed,
    rig_of_test,
)
from tests.integration.test_enqueue_garbage import fill
from tests.integration.worker_rig import COMMITTED, STALE, Rig, rigged

GARBAGE_ROUNDS = 100
FAILED = orchestrator.AttemptFailed(
    failure=Failure(type="Smudge", message="wet", traceback="at 3", permanent=True, exit_code=4),
    retry_after=Duration(seconds=9),
)


async def test_one_executor_cannot_touch_what_another_has(rig: Rig) -> None:
    async with attach(rig, "draw") as mine, attach(rig, "erase") as other:
        job, attempt = await handed(rig, mine)
        await other.report(attempt, succeeded=orchestrator.AttemptSucceeded())
        assert await other.verdict() == STALE
        newer = pb.AttachAttempt(job_id=attempt.job_id, dispatch_no=2)
        await mine.report(newer, failed=FAILED)
        assert await mine.verdict() == STALE
        await other.extend(attempt, 0.001)
        assert await other.verdict() == STALE
        logs = pb.AttachLog(job_id=attempt.job_id, dispatch_no=1, lines=[LogLine(text="forged")])
        await other.say(logs=logs)
        await mine.report(attempt, succeeded=orchestrator.AttemptSucceeded())
        assert await mine.verdict() == COMMITTED
        await rig.orchestrator.reported(job, "succeeded")


def report(**fields: Any) -> dict[str, Any]:
    known = {"job_id": b"0" * 16, "dispatch_no": 1}
    return {"report": orchestrator.AttemptReport(**known | fields)}


def extension(**fields: Any) -> dict[str, Any]:
    return {"extend": pb.AttachExtend(**{"job_id": b"0" * 16, "dispatch_no": 1} | fields)}


ENDED = orchestrator.AttemptSucceeded()
YEARS = Duration(seconds=10**9)
NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "an extension of nothing": (extension(), "extend.duration"),
    "no extension at all": (extension(duration=Duration()), "extend.duration"),
    "an extension backwards": (extension(duration=Duration(seconds=-1)), "extend.duration"),
    "an extension for years": (extension(duration=YEARS), "extend.duration"),
    "an extension of half a job": (
        extension(job_id=b"0" * 8, duration=Duration(seconds=1)),
        "extend.job_id",
    ),
    "a second hello": ({"hello": pb.AttachHello(types=["x"])}, "hello"),
    "nothing": ({}, "message"),
    "credit below zero": ({"credit": pb.AttachCredit(credit=-1)}, "credit.credit"),
    "too much credit": ({"credit": pb.AttachCredit(credit=10_001)}, "credit.credit"),
    "an id that is none": (report(job_id=b"abc", succeeded=ENDED), "report.job_id"),
    "no fence": (report(dispatch_no=0, succeeded=ENDED), "report.dispatch_no"),
    "a report of nothing": (report(), "report.report"),
    "progress that is no number": (report(progress=Progress(done=float("nan"))), "progress"),
    "progress below zero": (report(progress=Progress(done=-1)), "report.progress"),
    "a large checkpoint": (
        report(checkpoint=orchestrator.AttemptCheckpoint(data=Payload(data=b"x" * 65_537))),
        "report.checkpoint",
    ),
    "a checkpoint elsewhere": (
        report(checkpoint=orchestrator.AttemptCheckpoint(data=Payload(object=ObjectRef(key="k")))),
        "report.checkpoint",
    ),
    "a snooze of years": (report(snoozed=orchestrator.AttemptSnoozed(delay=YEARS)), "delay"),
    "a failure without end": (
        report(failed=orchestrator.AttemptFailed(failure=Failure(message="x" * 9000))),
        "report.failed.failure.message",
    ),
    "an output type that is none": (
        report(succeeded=orchestrator.AttemptSucceeded(output=Payload(content_type="???"))),
        "report.succeeded.output.content_type",
    ),
    "a log of nobody": ({"logs": pb.AttachLog(job_id=b"1")}, "logs.job_id"),
}


async def test_nonsense_ends_the_stream_and_harms_no_other(rig: Rig) -> None:
    async with attach(rig, "draw") as other:
        job, attempt = await handed(rig, other)
        for what, (message, field) in NONSENSE.items():
            async with attach(rig, "erase") as executor:
                await executor.say(**message)
                with pytest.raises(InvalidField) as caught:
                    await executor.end()
                assert field in str(caught.value), what
        await other.report(attempt, succeeded=ENDED)
        assert await other.verdict() == COMMITTED
        await rig.orchestrator.reported(job, "succeeded")


NO_HELLO: list[dict[str, Any]] = [
    {"credit": pb.AttachCredit(credit=1)},
    report(succeeded=ENDED),
    {"hello": pb.AttachHello(types=[])},
    {"hello": pb.AttachHello(types=["Not A Type"])},
    {"hello": pb.AttachHello(types=["x" * 64])},
    {"hello": pb.AttachHello(types=["x", "x"])},
    {"hello": pb.AttachHello(types=["x"], name="y" * 201)},
]


async def test_a_stream_begins_with_a_proper_hello(rig: Rig) -> None:
    for message in NO_HELLO:
        async with attach(rig) as executor:
            await executor.say(**message)
            with pytest.raises(InvalidField):
                await executor.end()
    assert rig.metric("worker_executors") == 0


@pytest.mark.parametrize(
    ("settings", "types"),
    [
        ({"attach": False, "types": ("noop",)}, ["draw"]),
        ({"attach": True, "types": ("noop",)}, ["draw", "noop"]),
    ],
)
async def test_a_worker_refuses_executors_it_has_no_use_for(
    nats_url: str,
    etcd_endpoint: str,
    unique_prefix: str,
    tmp_path: Path,
    settings: dict[str, Any],
    types: list[str],
) -> None:
    around = rigged(
        nats_url=nats_url, etcd=etcd_endpoint, prefix=unique_prefix, spool=tmp_path, **settings
    )
    async with around as rig:
        await rig.start()
        # No credit: gRPC forgets how a call ended if it ends while something is written to it.
        async with attach(rig, *types, credit=0) as executor:
            with pytest.raises(AttachRefused):
                await executor.end()


# --- garbage


async def test_garbage_is_refused_with_a_reason_and_never_internal(rig: Rig) -> None:
    random, known = Random(11), ["0" * 16, "draw", "text/plain"]
    async with attach(rig, "draw") as other:
        job, attempt = await handed(rig, other)
        for _ in range(GARBAGE_ROUNDS):
            async with attach(rig, "erase") as executor:
                message = pb.AttachRequest()
                fill(message, random, known)
                with suppress(MeshError):
                    await executor.call.write(message)
                    await executor.call.done_writing()
                assert await ended_with(executor) not in (Code.INTERNAL, Code.UNKNOWN), message
        await other.report(attempt, succeeded=ENDED)
        assert await other.verdict() == COMMITTED
        await rig.orchestrator.reported(job, "succeeded")


async def ended_with(executor: Executor) -> Code:
    try:
        await executor.end()
    except MeshError as error:
        return error.code
    return Code.OK
