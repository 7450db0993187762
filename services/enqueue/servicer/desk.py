"""What the RPCs share: the use cases, and the way of a submitted job through them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2, type_settings_pb2

from services.enqueue import convert
from services.enqueue.app.filter_hub import FilterHub
from services.enqueue.app.gate import Gate
from services.enqueue.app.inputs import Inputs, Outputs
from services.enqueue.app.logs import LogReader
from services.enqueue.app.stream import Room
from services.enqueue.app.type_settings import TypeSettingsStore
from services.enqueue.app.types import KnownTypes
from services.enqueue.app.watches import WatchHub
from services.enqueue.ports import TypeSurroundings
from services.enqueue.servicer.familiar import AlikeItems, FamiliarItems, shape_of
from services.mesh.clock import Clock
from services.mesh.errors import DependencyUnavailable, FieldViolation, InvalidField, MeshError
from services.mesh.lease.mirror import RegistryMirror
from services.mesh.rpc import Rules
from services.mesh.runtime import DrainSignal
from services.mesh.telemetry.tracing import Tracing
from services.mesh.wire.payloads import object_from_proto, object_to_proto
from services.mesh.wire.type_settings import fill_defaults

if TYPE_CHECKING:
    # Generated stubs have an async twin for type checkers only.
    from jobmesh.v1.orchestrator_service_pb2_grpc import (
        OrchestratorServiceAsyncStub as Orchestrator,
    )

Context = grpc.aio.ServicerContext[Any, Any]
PutJobResult = orchestrator_service_pb2.PutJobResult
PutJobsRequest = orchestrator_service_pb2.PutJobsRequest


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request to store jobs, what is wrong with other items, by number; and the numbers of those
    in the request, in the order in which it is answered.
    """

    request: PutJobsRequest
    errors: dict[int, MeshError]
    order: list[int]


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything a call may need."""

    orchestrator: Orchestrator
    put: Callable[[PutJobsRequest], Awaitable[Sequence[convert.Submitted]]]
    put_one: Callable[[convert.Single], Awaitable[PutJobResult]]
    types: KnownTypes
    settings: RegistryMirror[type_settings_pb2.TypeSettings]
    settings_store: TypeSettingsStore
    inputs: Inputs
    outputs: Outputs
    logs: LogReader
    watches: WatchHub
    surroundings: TypeSurroundings
    filter_watches: FilterHub
    room: Room
    gate: Gate
    drain: DrainSignal
    rules: Rules
    clock: Clock
    tracing: Tracing
    familiar: FamiliarItems = field(default_factory=FamiliarItems)
    familiar_calls: FamiliarItems = field(default_factory=FamiliarItems)

    def check(self, request: pb.EnqueueRequest) -> bytes | None:
        """Hold a call against the contract's rules, unless one like it passed before. Returns what
        calls have in common whose jobs differ in nothing but the bytes of their inputs and their
        keys; None: there are none like it.
        """
        shape = shape_of(request)
        if not self.familiar_calls.covers(shape, request):
            self.rules.check(request)
            if not self.familiar_calls.learn(shape, request):
                return None
        return shape

    async def admit(
        self, namespace: str, spec: job_pb2.JobSpec, key: str, path: str = "job"
    ) -> convert.NewJob:
        """Check a job that passed the contract's rules, and put a large input away."""
        job = self._checked(namespace, spec, key, path)
        if not self._is_settled(spec):
            await self.check_type(spec.type)
            await self.settle_input(namespace, job.spec)
        return job

    async def check_type(self, type_: str) -> None:
        """Return if jobs of the type can be made now, with what its settings give them."""
        await self.types.check(type_)
        if not self.settings.synced:
            raise DependencyUnavailable("etcd", "the settings of types are not loaded yet")

    async def settle_input(self, namespace: str, spec: job_pb2.JobSpec) -> None:
        """Offload inline bytes above the threshold; look for objects that the caller named."""
        given = spec.input
        kind = given.WhichOneof("content")
        if kind == "data" and self.inputs.is_large(len(given.data)):
            ref = await self.inputs.offload(namespace, given.data, given.content_type)
            given.object.CopyFrom(object_to_proto(ref))
        elif kind == "object":
            ref = await self.inputs.verify(namespace, object_from_proto(given.object))
            given.object.CopyFrom(object_to_proto(ref))

    async def admit_all(
        self,
        namespace: str,
        items: Sequence[pb.EnqueueItem],
        numbers: Sequence[int] | None = None,
    ) -> Admitted:
        """The jobs that may be stored, and what is wrong with the others, by place.

        Each item by itself: what is wrong with one says nothing about the others. Errors name an
        item by its number, which is its place if nothing is said.

        Most items need no I/O and are admitted in place, straight into the message that goes out; a
        task and a copy each would cost more than all the rest of the admission. Those that are like
        one before them leave nothing but their bytes there.
        """
        request = PutJobsRequest()
        errors: dict[int, MeshError] = {}
        waiting: dict[int, convert.NewJob] = {}
        order: list[int] = []
        groups = AlikeItems(self.familiar, self.inputs.is_large)
        trace = self.tracing.current_traceparent()
        numbers = range(len(items)) if numbers is None else numbers
        for place, item in enumerate(items):
            shape = shape_of(item)
            if groups.take(shape, item, place):
                continue
            if not self._is_settled(item.job):
                waiting[place] = request.jobs.add()
            elif (error := self._check_in_place(shape, numbers[place], item)) is not None:
                errors[place] = error
                continue
            elif groups.begin(shape, item, place):
                continue
            else:
                into = request.jobs.add()
                convert.fill_new_job(into, namespace, item.job, item.idempotency_key, trace)
                self._default(into.spec)
            order.append(place)
        await asyncio.gather(
            *(
                self._admit_slowly(namespace, numbers[at], at, items[at], waiting, errors)
                for at in waiting
            )
        )
        for place in reversed(range(len(order))):
            if order[place] in errors:
                del request.jobs[place], order[place]
        self._put_in_columns(groups, items, namespace, trace, request, order)
        return Admitted(request, errors, order)

    def _put_in_columns(
        self,
        groups: AlikeItems,
        items: Sequence[pb.EnqueueItem],
        namespace: str,
        trace: str,
        request: PutJobsRequest,
        order: list[int],
    ) -> None:
        """What was gathered goes behind what is in the request."""
        for item, group in groups.taken(keyed=True):
            alike = request.keyed.add(inputs=group.inputs)
            convert.fill_keys(alike, [items[number] for number in group.numbers])
            self._fill_like(alike.like, namespace, item, trace)
            order += group.numbers
        plain = groups.taken(keyed=False)
        if request.jobs or plain:
            convert.spell_out(request)
        for item, group in plain:
            self._fill_like(request.groups.add(inputs=group.inputs).like, namespace, item, trace)
            order += group.numbers

    def _fill_like(
        self, like: convert.NewJob, namespace: str, item: pb.EnqueueItem, trace: str
    ) -> None:
        convert.fill_like(like, namespace, item.job, trace)
        self._default(like.spec)

    def _is_settled(self, spec: job_pb2.JobSpec) -> bool:
        """Whether nothing outside has to be asked about this job."""
        given = spec.input
        large = given.HasField("object") or self.inputs.is_large(len(given.data))
        return not large and self.types.is_known(spec.type) and self.settings.synced

    def _checked(
        self, namespace: str, spec: job_pb2.JobSpec, key: str, path: str
    ) -> convert.NewJob:
        try:
            convert.check_spec(spec, self.clock.now())
        except InvalidField as error:
            raise within(path, error) from None
        job = convert.new_job(namespace, spec, key, self.tracing.current_traceparent())
        self._default(job.spec)
        return job

    def _default(self, spec: job_pb2.JobSpec) -> None:
        """After the hash: the same request is the same job, whatever the defaults are by now."""
        if self.settings.items and (settings := self.settings.items.get(spec.type)) is not None:
            fill_defaults(spec, settings)

    def _check_in_place(
        self, shape: bytes | None, number: int, item: pb.EnqueueItem
    ) -> MeshError | None:
        """What is wrong with an item about which nothing outside has to be asked."""
        if self.familiar.covers(shape, item):
            return None
        if violations := self.rules.violations(item, f"items[{number}]"):
            return InvalidField.of(violations)
        try:
            convert.check_spec(item.job, self.clock.now())
        except InvalidField as error:
            return within(f"items[{number}].job", error)
        except MeshError as error:
            return error
        self.familiar.learn(shape, item)
        return None

    async def _admit_slowly(
        self,
        namespace: str,
        number: int,
        place: int,
        item: pb.EnqueueItem,
        waiting: Mapping[int, convert.NewJob],
        errors: dict[int, MeshError],
    ) -> None:
        if violations := self.rules.violations(item, f"items[{number}]"):
            errors[place] = InvalidField.of(violations)
            return
        try:
            path = f"items[{number}].job"
            job = await self.admit(namespace, item.job, item.idempotency_key, path)
            waiting[place].CopyFrom(job)
        except MeshError as error:
            errors[place] = error


def within(prefix: str, error: InvalidField) -> InvalidField:
    return InvalidField.of(
        FieldViolation(f"{prefix}.{v.field}", v.description, v.rule) for v in error.violations
    )
