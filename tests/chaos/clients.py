"""One client of a chaos run: what it asks, and what it writes down about the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc.aio
from jobmesh.client import AsyncClient
from jobmesh.client.convert import to_filter
from jobmesh.client.status import from_item
from jobmesh.client.submission import to_spec
from jobmesh.errors import CallError, JobmeshError
from jobmesh.options import NewJob
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1.payload_pb2 import Payload

from tests.chaos.history import FAIL, OK, UNKNOWN, Journal, now, outcome_of
from tests.chaos.ledger import digest
from tests.chaos.orders import Order

CALL_SECONDS = 5.0
#: How long a keyed job is sent again before its outcome stays unknown.
KEYED_SECONDS = 90.0
INLINE_BYTES = 16_384
_PAUSE_SECONDS = 0.3
_CANCEL_TRIES = 5


def connect(targets: Sequence[str]) -> list[AsyncClient]:
    """A client per replica that sends nothing again by itself."""
    return [AsyncClient(target, attempts=1, timeout=CALL_SECONDS) for target in targets]


class Ring:
    """The replicas of Enqueue, as a balancer would see them: after an error, the next."""

    def __init__(self, clients: Sequence[AsyncClient], first: int) -> None:
        self._clients = clients
        self._at = first % len(clients)

    @property
    def client(self) -> AsyncClient:
        return self._clients[self._at]

    def turn(self) -> None:
        self._at = (self._at + 1) % len(self._clients)

    def explain(self, failure: grpc.aio.AioRpcError) -> CallError:
        return self.client._session.caller.explain(failure, CALL_SECONDS)


class ChaosClient:
    """Submits one lot after the other, and looks back at some of them."""

    def __init__(
        self, name: str, ring: Ring, journal: Journal, on_acked: Callable[[str, str], None]
    ) -> None:
        self._name = name
        self._ring = ring
        self._journal = journal
        self._on_acked = on_acked
        self._racing: set[asyncio.Task[None]] = set()

    async def submit(self, lot: Sequence[Order]) -> None:
        """Submit, and do what goes with the kind: send again, look back, cancel."""
        if len(lot) > 1:
            await self._submit_batch(lot)
            return
        order = lot[0]
        job = await (self._submit_keyed(order) if order.key else self._submit_once(order))
        if not job:
            return
        if order.cancel_after is not None:
            racing = asyncio.create_task(self._cancel(order, job), name=f"cancel-{order.ref}")
            self._racing.add(racing)
            racing.add_done_callback(self._racing.discard)
        elif order.kind in ("plain", "flaky"):
            await self.read(order, job)

    async def close(self) -> None:
        """Wait for cancels under way."""
        await asyncio.gather(*self._racing)

    # --- submitting

    async def _submit_once(self, order: Order) -> str:
        begin = now()
        try:
            spec = await self._spec(order)
        except JobmeshError as problem:  # its input could not even be uploaded
            self._write("enqueue", order, begin, FAIL, error=str(problem))
            self._ring.turn()
            await asyncio.sleep(_PAUSE_SECONDS)
            return ""
        request = pb.EnqueueRequest(namespace=order.namespace, job=spec, idempotency_key=order.key)
        try:
            answer = await self._ring.client.stub.Enqueue(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            self._ring.turn()
            self._write("enqueue", order, begin, outcome_of(error), error=error.line)
            await asyncio.sleep(_PAUSE_SECONDS)
            return ""
        self._accept(order, answer.job.id)
        self._write("enqueue", order, begin, OK, job=answer.job.id, existing=answer.existing)
        return str(answer.job.id)

    async def _submit_keyed(self, order: Order) -> str:
        """The same key again and again until somebody says what became of it; then once more."""
        deadline = now() + KEYED_SECONDS
        job = ""
        while not job and now() < deadline:
            job = await self._submit_once(order)
        return await self._submit_once(order) or job if job else ""

    async def _submit_batch(self, lot: Sequence[Order]) -> None:
        begin = now()
        items = [pb.EnqueueItem(job=await self._spec(order)) for order in lot]
        request = pb.EnqueueBatchRequest(namespace=lot[0].namespace, items=items)
        try:
            answer = await self._ring.client.stub.EnqueueBatch(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            self._ring.turn()
            for order in lot:
                self._write("enqueue", order, begin, outcome_of(error), error=error.line)
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        for order, result in zip(lot, answer.results, strict=True):
            self._item(order, result, begin)
        await self._list(lot)

    def _item(self, order: Order, result: pb.EnqueueResult, begin: float) -> None:
        if result.HasField("error"):
            error = from_item(result.error)
            self._write("enqueue", order, begin, outcome_of(error), error=error.line)
            return
        self._accept(order, result.job_id)
        self._write("enqueue", order, begin, OK, job=result.job_id, existing=result.existing)

    async def _spec(self, order: Order) -> Any:
        data = json.dumps(order.input).encode()
        payload = Payload(data=data, content_type="application/json")
        if len(data) > INLINE_BYTES:
            payload = await self._ring.client.upload(
                data, "application/json", namespace=order.namespace
            )
        new = NewJob(
            order.type,
            delay=order.delay or None,
            retry=order.retry,
            labels={"ref": order.ref, **order.labels},
            expire=_after(order.expire_after) if order.expire_after else None,
        )
        return to_spec(new, payload)

    def _accept(self, order: Order, job: str) -> None:
        self._on_acked(job, order.namespace)

    # --- looking back

    async def read(self, order: Order, job: str) -> int:
        """Look at a job, and write down what was seen; its state, 0 if nobody could say."""
        begin = now()
        request = pb.GetJobRequest(namespace=order.namespace, job_id=job)
        try:
            answer = await self._ring.client.stub.GetJob(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            outcome = FAIL if error.status == "NOT_FOUND" else UNKNOWN
            self._write("get", order, begin, outcome, job=job, error=error.line)
            self._ring.turn()
            return 0
        self._write("get", order, begin, OK, job=job, version=answer.job.version)
        return int(answer.job.state)

    async def _list(self, lot: Sequence[Order]) -> None:
        """All jobs of a batch by their common label."""
        begin = now()
        request = pb.ListJobsRequest(
            namespace=lot[0].namespace, filter=to_filter(labels=lot[0].labels), page_size=1000
        )
        try:
            answer = await self._ring.client.stub.ListJobs(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            self._write("list", lot[0], begin, UNKNOWN, error=self._ring.explain(failure).line)
            return
        jobs = [job.id for job in answer.jobs]
        fields = {"jobs": jobs, "partial": answer.partial, "lot": lot[0].labels["lot"]}
        self._write("list", lot[0], begin, OK, **fields)

    async def _cancel(self, order: Order, job: str) -> None:
        await asyncio.sleep(order.cancel_after or 0)
        request = pb.CancelJobRequest(namespace=order.namespace, job_id=job, reason="chaos")
        for _ in range(_CANCEL_TRIES):
            begin = now()
            try:
                answer = await self._ring.client.stub.CancelJob(request, timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as failure:
                error = self._ring.explain(failure)
                outcome = FAIL if error.status == "NOT_FOUND" else UNKNOWN
                self._write("cancel", order, begin, outcome, job=job, error=error.line)
                self._ring.turn()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            fields = {"cancelled": answer.cancelled, "state": answer.job.state}
            self._write("cancel", order, begin, OK, job=job, version=answer.job.version, **fields)
            await self.read(order, job)  # which shall know of it, whoever answers
            return

    def _write(self, op: str, order: Order, begin: float, outcome: str, **fields: Any) -> None:
        said: dict[str, Any] = {
            "op": op,
            "client": self._name,
            "ref": order.ref,
            "kind": order.kind,
        }
        said |= {"namespace": order.namespace, "begin": begin, "end": now(), "outcome": outcome}
        if op == "enqueue":
            said |= {"key": order.key, "type": order.type, "attempts": order.attempts}
            said |= {"lot": order.labels.get("lot", "")}
            said |= {"delay": order.delay, "expire_after": order.expire_after}
            said |= {"input": digest(order.input)}
            said |= {"fails": order.input.get("fails", 0), "expires": bool(order.expire_after)}
        self._journal.write(**said, **fields)


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)
