"""Random garbage to every call of the public face: refused with a reason, never INTERNAL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2

from services.mesh.errors import Code, InvalidField, MeshError
from tests.integration.enqueue_desk import Desk, desk  # noqa: F401

ROUNDS = 50
ALL = list(HealthCheck)
TEXTS = (
    "",
    "echo",
    "x" * 5000,
    "a\0b",
    "No Type",
    "../..",
    "\N{SNOWMAN}",
    "'; DROP TABLE jobs",
    "%",
)
NUMBERS = (0, 1, -1, 9, 10, 2**31 - 1, -(2**31))
LARGE = (0, 1, -1, 10**10, 10**15, 2**62, -(2**62))
KINDS = FieldDescriptor


def value(field: FieldDescriptor, random: Random, known: list[str]) -> Any:
    """Something that fits the wire, and perhaps nothing else."""
    match field.cpp_type:
        case KINDS.CPPTYPE_STRING:
            text = random.choice(known) if random.random() < 0.4 else random.choice(TEXTS)
            return text if field.type == KINDS.TYPE_STRING else text.encode()
        case KINDS.CPPTYPE_BOOL:
            return random.random() < 0.5
        case KINDS.CPPTYPE_INT64 | KINDS.CPPTYPE_UINT64:
            return random.choice(LARGE)
        case KINDS.CPPTYPE_DOUBLE | KINDS.CPPTYPE_FLOAT:
            return random.choice((0.0, -1.0, float("inf"), float("nan")))
        case KINDS.CPPTYPE_ENUM:
            return random.choice((0, 1, 5, 8, 99))
        case _:
            return random.choice(NUMBERS)


def fill(message: Message, random: Random, known: list[str], depth: int = 0) -> None:
    """Set about half of the fields, and those of the messages within."""
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        if random.random() < 0.5 or depth > 4:
            continue
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(random.choice((1, 2, 40))):
                target[random.choice(TEXTS) + str(random.randrange(99))] = random.choice(TEXTS)
        elif field.is_repeated and field.message_type is not None:
            fill(target.add(), random, known, depth + 1)
        elif field.is_repeated:
            target.extend(value(field, random, known) for _ in range(random.choice((1, 3))))
        elif field.message_type is not None:
            target.SetInParent()
            fill(target, random, known, depth + 1)
        else:
            setattr(message, field.name, value(field, random, known))


METHODS = {
    method.name: method for method in pb.DESCRIPTOR.services_by_name["EnqueueService"].methods
}
#: Calls that may do what they are asked when the garbage happens to make sense.
MAKERS = ("Enqueue", "EnqueueBatch", "EnqueueStream")
#: Calls whose garbage is nearly always understood: every field may be empty or anything.
LENIENT = ("ListTypes",)
PARTS = 3


class Caller:
    """Sends one request to any method, however it is streamed."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.stored = self.scheduled = 0
        self.codes: dict[Code, int] = {}

    async def send(self, method: MethodDescriptor, request: Message) -> None:
        code, reason = await self._outcome(method, request)
        assert code not in (Code.INTERNAL, Code.UNKNOWN), f"{reason}: {str(request)[:2000]}"
        assert reason != "UNSPECIFIED", str(request)[:2000]
        self.codes[code] = self.codes.get(code, 0) + 1

    async def _outcome(self, method: MethodDescriptor, request: Message) -> tuple[Code, str]:
        try:
            async for response in self._responses(method, request):
                self._count(response)
                if not method.client_streaming:
                    break  # a watch goes on until it is left
        except MeshError as error:
            return error.code, error.reason
        return Code.OK, ""

    async def _responses(
        self, method: MethodDescriptor, request: Message
    ) -> AsyncIterator[Message]:
        invoke = getattr(self.desk.stub, method.name)
        if not (method.client_streaming or method.server_streaming):
            yield await invoke(request, timeout=2)
            return
        argument = _once(request) if method.client_streaming else request
        call = invoke(argument, timeout=2)
        if not method.server_streaming:
            yield await call
            return
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    def _count(self, response: Message) -> None:
        if isinstance(response, pb.EnqueueResponse):
            self.stored += 1
        elif isinstance(response, pb.EnqueueBatchResponse | pb.EnqueueStreamResponse):
            self.stored += sum(result.HasField("job_id") for result in response.results)
            # The call itself answers OK: what is wrong stands with the items.
            for error in (result.error for result in response.results if result.HasField("error")):
                assert error.code not in (Code.INTERNAL, Code.UNKNOWN), error
                assert error.reason, error
                self.codes[Code(error.code)] = self.codes.get(Code(error.code), 0) + 1
        elif isinstance(response, pb.CreateScheduleResponse):
            self.scheduled += 1


async def _once(request: Message) -> AsyncIterator[Message]:
    yield request


# The service runs in another thread while examples are drawn, and may well use `random`.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("part", range(PARTS))
async def test_garbage_is_refused_with_a_reason_and_stores_nothing(desk: Desk, part: int) -> None:
    for name in list(METHODS)[part::PARTS]:
        await throw_garbage(desk, name)


async def throw_garbage(desk: Desk, name: str) -> None:
    job = (await desk.enqueue(delay={"seconds": 3600})).job
    known = [job.id, "default", "priority", "labels", "schedule_time", "echo"]
    before, schedules = len(await jobs_of(desk, known)), await schedules_of(desk, known)
    method, caller, loop = METHODS[name], Caller(desk), asyncio.get_running_loop()

    # The same garbage in every run: what CI says must not depend on chance.
    @settings(max_examples=ROUNDS, deadline=None, derandomize=True, suppress_health_check=ALL)
    @given(random=st.randoms(use_true_random=False))
    def storm(random: Random) -> None:
        request: Any = GetMessageClass(method.input_type)()
        fill(request, random, known)
        if "dry_run" in method.input_type.fields_by_name:
            request.dry_run = True  # what is done right is tested elsewhere
        if name == "Enqueue":
            request.ClearField("wait")
        asyncio.run_coroutine_threadsafe(caller.send(method, request), loop).result(20)

    await asyncio.to_thread(storm)
    print(name, {code.name: count for code, count in caller.codes.items()})
    assert name in LENIENT or caller.codes.get(Code.INVALID_ARGUMENT, 0) > 0
    assert name in MAKERS or not caller.stored
    assert await schedules_of(desk, known) == schedules + caller.scheduled
    jobs = await jobs_of(desk, known)
    assert len(jobs) == before + caller.stored
    assert jobs[job.id].state == job_pb2.JOB_STATE_SCHEDULED or name == "CancelJob"


async def jobs_of(desk: Desk, namespaces: list[str]) -> dict[str, job_pb2.Job]:
    jobs: dict[str, job_pb2.Job] = {}
    for namespace in namespaces:
        request = pb.ListJobsRequest(namespace=namespace, page_size=1000)
        with suppress(InvalidField):  # some are no names of namespaces
            jobs |= {job.id: job for job in (await desk.stub.ListJobs(request)).jobs}
    return jobs


async def schedules_of(desk: Desk, namespaces: list[str]) -> int:
    count = 0
    for namespace in namespaces:
        request = pb.ListSchedulesRequest(namespace=namespace, page_size=1000)
        with suppress(InvalidField):
            count += len((await desk.stub.ListSchedules(request)).schedules)
    return count
