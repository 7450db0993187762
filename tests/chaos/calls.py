"""The calls of a chaos client: each is sent once, and is one line of the history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc.aio
from jobmesh.client import AsyncClient
from jobmesh.client.convert import to_filter
from jobmesh.client.status import from_item
from jobmesh.client.submission import ON_FAILURE, to_spec
from jobmesh.errors import CallError, JobmeshError
from jobmesh.options import NewJob
from jobmesh.ties import After, Unique
from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1.job_pb2 import JobSpec
from jobmesh.v1.payload_pb2 import Payload

from tests.chaos.history import CONFLICT, FAIL, HELD, OK, UNKNOWN, Journal, now, outcome_of
from tests.chaos.ledger import digest
from tests.chaos.orders import Change, Order

CALL_SECONDS = 5.0
INLINE_BYTES = 16_384
_PAUSE_SECONDS = 0.3


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


class Calls:
    """What one client asks, and what it writes down about the answers."""

    def __init__(
        self, name: str, ring: Ring, journal: Journal, on_acked: Callable[[str, str], None]
    ) -> None:
        self._name = name
        self._ring = ring
        self._journal = journal
        self._on_acked = on_acked

    # --- submitting

    async def enqueue(self, order: Order, ids: Mapping[str, str] | None = None) -> str:
        """Submit one job; its id, if that was told. `ids` are those of the jobs it waits for."""
        begin = now()
        try:
            spec = await self._spec(order, ids or {})
        except JobmeshError as problem:  # its input could not even be uploaded
            self._write("enqueue", order, begin, FAIL, error=str(problem))
            await self._go_on()
            return ""
        request = pb.EnqueueRequest(namespace=order.namespace, job=spec, idempotency_key=order.key)
        try:
            answer = await self._ring.client.stub.Enqueue(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            self._write("enqueue", order, begin, outcome_of(error), **_said(error))
            await self._go_on()
            return ""
        self._on_acked(answer.job.id, order.namespace)
        said = {"job": answer.job.id, "existing": answer.existing}
        if order.unique_key:  # whoever holds the key may be somebody else's
            said["told_ref"] = answer.job.spec.labels.get("ref", "")
        self._write("enqueue", order, begin, OK, **said)
        return str(answer.job.id)

    async def enqueue_batch(self, lot: Sequence[Order]) -> list[str]:
        """Submit a lot in one message; the ids that were told, in the order of the lot."""
        begin = now()
        request = pb.EnqueueBatchRequest(namespace=lot[0].namespace, items=await self._items(lot))
        try:
            answer = await self._ring.client.stub.EnqueueBatch(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            for order in lot:
                self._write("enqueue", order, begin, outcome_of(error), **_said(error))
            await self._go_on()
            return [""] * len(lot)
        results = zip(lot, answer.results, strict=True)
        jobs = [self._item(order, result, begin) for order, result in results]
        if not all(jobs):
            await self._go_on()
        return jobs

    def _item(self, order: Order, result: pb.EnqueueResult, begin: float) -> str:
        if result.HasField("error"):
            error = from_item(result.error)
            self._write("enqueue", order, begin, outcome_of(error), **_said(error))
            return ""
        self._on_acked(result.job_id, order.namespace)
        self._write("enqueue", order, begin, OK, job=result.job_id, existing=result.existing)
        return result.job_id

    async def _items(self, lot: Sequence[Order]) -> list[pb.EnqueueItem]:
        places = {order.ref: place for place, order in enumerate(lot)}
        items = []
        for order in lot:
            item = pb.EnqueueItem(job=await self._spec(order, {}), idempotency_key=order.key)
            for ref, policy in order.parents:
                item.item_dependencies.add(item=places[ref], on_failure=ON_FAILURE[policy])
            items.append(item)
        return items

    async def _spec(self, order: Order, ids: Mapping[str, str]) -> Any:
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
            labels=order.labels_told,
            expire=_after(order.expire_after) if order.expire_after else None,
            concurrency_key=order.limit_key,
            unique=Unique(order.unique_key, order.unique_policy) if order.unique_key else None,
            after=[After(ids[ref], policy) for ref, policy in order.parents if ref in ids],
        )
        return to_spec(new, payload)

    async def conflict(self, order: Order, job: str) -> None:
        """Submit something else under the key of a job: to refuse that is the answer."""
        begin = now()
        other = replace(order, input={**order.input, "tag": f"not-{order.ref}"})
        spec = await self._spec(other, {})
        request = pb.EnqueueRequest(namespace=order.namespace, job=spec, idempotency_key=order.key)
        try:
            answer = await self._ring.client.stub.Enqueue(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            is_refused = error.reason == CONFLICT
            said = {**_said(error), "refused": is_refused, "holder": error.metadata.get("job_id")}
            outcome = OK if is_refused else UNKNOWN
            self._write("conflict", order, begin, outcome, job=job, **said)
            return
        said = {"refused": False, "holder": answer.job.id}
        self._write("conflict", order, begin, OK, job=job, **said)

    # --- looking back

    async def get(self, order: Order, job: str) -> int:
        """Look at a job; its state, 0 if nobody could say."""
        begin = now()
        request = pb.GetJobRequest(namespace=order.namespace, job_id=job)
        try:
            answer = await self._ring.client.stub.GetJob(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            outcome = FAIL if error.status == "NOT_FOUND" else UNKNOWN
            self._write("get", order, begin, outcome, job=job, **_said(error))
            self._ring.turn()
            return 0
        self._write("get", order, begin, OK, job=job, version=answer.job.version)
        return int(answer.job.state)

    async def list_lot(self, lot: Sequence[Order]) -> None:
        """All jobs of a batch by their common label."""
        begin = now()
        request = pb.ListJobsRequest(
            namespace=lot[0].namespace, filter=to_filter(labels=lot[0].labels), page_size=1000
        )
        try:
            answer = await self._ring.client.stub.ListJobs(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            self._write("list", lot[0], begin, UNKNOWN, **_said(self._ring.explain(failure)))
            return
        jobs = [job.id for job in answer.jobs]
        fields = {"jobs": jobs, "partial": answer.partial, "lot": lot[0].labels["lot"]}
        self._write("list", lot[0], begin, OK, **fields)

    # --- changing

    async def cancel(self, order: Order, job: str) -> bool:
        """Cancel a job; whether somebody said what became of it."""
        begin = now()
        request = pb.CancelJobRequest(namespace=order.namespace, job_id=job, reason="chaos")
        try:
            answer = await self._ring.client.stub.CancelJob(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            outcome = FAIL if error.status == "NOT_FOUND" else UNKNOWN
            self._write("cancel", order, begin, outcome, job=job, **_said(error))
            await self._go_on()
            return False
        fields = {"cancelled": answer.cancelled, "state": answer.job.state}
        self._write("cancel", order, begin, OK, job=job, version=answer.job.version, **fields)
        return True

    async def retry(self, order: Order, job: str) -> str:
        """Start an ended job over; the id of the job that repeats it, if that was told."""
        begin = now()
        request = pb.RetryJobRequest(namespace=order.namespace, job_id=job)
        try:
            answer = await self._ring.client.stub.RetryJob(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            self._write("retry", order, begin, outcome_of(error), job=job, **_said(error))
            await self._go_on()
            return ""
        self._on_acked(answer.job.id, order.namespace)
        fields = {"made": answer.job.id, "existing": answer.existing}
        self._write("retry", order, begin, OK, job=job, **fields)
        return str(answer.job.id)

    async def retry_lot(self, lot: Sequence[Order], *, dry_run: bool = False) -> int | None:
        """Start over all of a lot that ended without success, by their label, or count them; how
        many, if all shards have answered.
        """
        begin, op = now(), "retry.count" if dry_run else "retry.many"
        chosen = to_filter(labels=lot[0].labels)
        request = pb.RetryJobsRequest(namespace=lot[0].namespace, filter=chosen, dry_run=dry_run)
        said: dict[str, Any] = {"lot": lot[0].labels["lot"]}
        try:
            answer = await self._ring.client.stub.RetryJobs(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            # Whatever it says of its last try: some of the lot may be done.
            error = self._ring.explain(failure)
            self._write(op, lot[0], begin, UNKNOWN, **said, **_said(error))
            await self._go_on()
            return None
        is_partial = answer.partial or bool(answer.next_page_token)
        said |= {"count": answer.count, "partial": is_partial}
        self._write(op, lot[0], begin, OK, **said)
        return None if is_partial else answer.count

    async def update(self, order: Order, job: str, change: Change) -> bool:
        """Change time, priority and labels of a job; whether it was."""
        begin = now()
        at = datetime.now(UTC) + timedelta(seconds=change.delay)
        labels = {"ref": order.ref, **order.labels, "mark": change.mark}
        spec = JobSpec(priority=change.priority, labels=labels)
        spec.schedule_time.FromDatetime(at)
        request = pb.UpdateJobRequest(namespace=order.namespace, job_id=job, job=spec)
        request.update_mask.paths.extend(["schedule_time", "priority", "labels"])
        asked = {"at": at.timestamp(), "priority": change.priority, "mark": change.mark}
        try:
            answer = await self._ring.client.stub.UpdateJob(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as failure:
            error = self._ring.explain(failure)
            said = {**asked, **_said(error)}
            self._write("update", order, begin, outcome_of(error), job=job, **said)
            await self._go_on()
            return False
        self._write("update", order, begin, OK, job=job, version=answer.job.version, **asked)
        return True

    # --- the rest

    async def _go_on(self) -> None:
        """After a call that failed: to the next replica, in a moment."""
        self._ring.turn()
        await asyncio.sleep(_PAUSE_SECONDS)

    def _write(self, op: str, order: Order, begin: float, outcome: str, **fields: Any) -> None:
        said: dict[str, Any] = {
            "op": op,
            "client": self._name,
            "ref": order.ref,
            "kind": order.kind,
        }
        said |= {"namespace": order.namespace, "begin": begin, "end": now(), "outcome": outcome}
        if op == "enqueue":
            said |= _asked(order)
        self._journal.write(**said, **fields)


def _asked(order: Order) -> dict[str, Any]:
    """What the checker has to know of a submission."""
    said: dict[str, Any] = {"key": order.key, "type": order.type, "attempts": order.attempts}
    said |= {"lot": order.labels.get("lot", ""), "input": digest(order.input)}
    said |= {"delay": order.delay, "expire_after": order.expire_after}
    said |= {"fails": order.input.get("fails", 0), "expires": bool(order.expire_after)}
    if order.parents:
        said["parents"] = order.parents
    if order.limit_key:
        said["limit_key"] = order.limit_key
    if order.unique_key:
        said |= {"unique": order.unique_key, "policy": order.unique_policy}
    if "pause" in order.input:
        said["pause"] = order.input["pause"]
    return said


def _said(error: CallError) -> dict[str, str]:
    said = {"error": error.line, "reason": error.reason}
    return {**said, "holder": error.metadata["job_id"]} if error.reason == HELD else said


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)
