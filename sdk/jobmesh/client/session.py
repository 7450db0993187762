"""What all parts of a client share: caller, stub, namespace, and how inputs are sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from jobmesh.client.caller import Caller, Method, Request, Response
from jobmesh.client.gathering import Gathering
from jobmesh.client.submission import function_of
from jobmesh.client.transfer import INLINE_BYTES, Transfer
from jobmesh.errors import CallError
from jobmesh.options import NewJob
from jobmesh.payloads import encode_input
from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceStub
from jobmesh.v1.payload_pb2 import Payload

if TYPE_CHECKING:
    from jobmesh.v1.enqueue_service_pb2_grpc import EnqueueServiceAsyncStub


class Session:
    """One connection to EnqueueService on behalf of one namespace."""

    def __init__(self, caller: Caller, namespace: str) -> None:
        self.caller = caller
        self._namespace = namespace
        self._gatherings: dict[str, Gathering] = {}

    @cached_property
    def stub(self) -> EnqueueServiceAsyncStub:
        return EnqueueServiceStub(self.caller.channel)

    @cached_property
    def transfer(self) -> Transfer:
        return Transfer(self.caller, self.stub)

    def namespace(self, given: str | None) -> str:
        """The namespace a call is about: its own, or the client's."""
        return self._namespace if given is None else given

    def submit(self, namespace: str) -> Gathering:
        """What single submissions to a namespace go through."""
        found = self._gatherings.get(namespace)
        if found is None:
            forget = partial(self._gatherings.pop, namespace, None)
            found = self._gatherings[namespace] = Gathering(self.stub, forget)
        return found

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        repeat: bool | Callable[[CallError], bool] = True,
        timeout: float | None = None,
    ) -> Response:
        return await self.caller.call(method, request, repeat=repeat, timeout=timeout)

    async def payload(self, new: NewJob, namespace: str) -> Payload:
        """The input of a job, uploaded first if it is a file or too large for a message."""
        encoded = encode_input(new.input, function_of(new), new.content_type)
        content = encoded.content
        if isinstance(content, Path) or len(content) > INLINE_BYTES:
            return await self.transfer.upload(content, encoded.content_type, namespace)
        if not content:
            return Payload(content_type=encoded.content_type)
        return Payload(data=content, content_type=encoded.content_type)
