"""The transactions that take and give back locks.

Messages that are joined end to end are one message, in which repeated fields add up: a request for
many keys is a request for each of them, one after the other. And those differ in the key only, so
they are made of what one of them was written as, once. Building them field by field was most of
what a lock cost a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from etcd import rpc_pb2 as pb


class LockRequests:
    """Requests about the locks of one worker, by their names in etcd."""

    def __init__(self, prefix: str, worker_id: str, lease_id: int) -> None:
        self._prefix, self._worker_id, self._lease_id = prefix, worker_id.encode(), lease_id
        self._any = self.name(bytes(16))
        self._dropping = self._around_name(pb.TxnRequest(success=[_delete(self._any)]))
        # Fences are small numbers, mostly 1.
        self._taking = lru_cache(maxsize=1024)(self._taking_for)

    def name(self, job: bytes) -> bytes:
        """The key of a job's lock."""
        text = job.hex()
        dashed = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        return (self._prefix + dashed).encode()

    def _around_name(self, request: pb.TxnRequest) -> list[bytes]:
        """What stands around the name in a request about one lock."""
        return request.SerializeToString().split(self._any)

    # --- take

    def take_all(self, wanted: Iterable[tuple[bytes, int]]) -> pb.TxnRequest:
        """All of these, by name and fence, or none if one is held."""
        parts = [name.join(self._taking(fence)) for name, fence in wanted]
        return pb.TxnRequest.FromString(b"".join(parts))

    def _taking_for(self, fence: int) -> list[bytes]:
        free, put = _is_free(self._any), self._put(self._any, fence)
        return self._around_name(pb.TxnRequest(compare=[free], success=[put]))

    def take_each(self, wanted: Iterable[tuple[bytes, int]]) -> pb.TxnRequest:
        """Each that is free or already ours; what holds the others is read."""
        return pb.TxnRequest(success=[self._take(name, fence) for name, fence in wanted])

    def _take(self, name: bytes, fence: int) -> pb.RequestOp:
        put = self._put(name, fence)
        read = pb.RequestOp(request_range=pb.RangeRequest(key=name))
        retake = pb.TxnRequest(compare=[self._has_lease(name)], success=[put], failure=[read])
        take = pb.TxnRequest(
            compare=[_is_free(name)], success=[put], failure=[pb.RequestOp(request_txn=retake)]
        )
        return pb.RequestOp(request_txn=take)

    def _put(self, name: bytes, fence: int) -> pb.RequestOp:
        value = self._value(fence)
        return pb.RequestOp(request_put=pb.PutRequest(key=name, value=value, lease=self._lease_id))

    def _value(self, fence: int) -> bytes:
        return b"%b/%d" % (self._worker_id, fence)

    def _has_lease(self, name: bytes) -> pb.Compare:
        return pb.Compare(key=name, target=pb.Compare.LEASE, lease=self._lease_id)

    # --- give back

    def drop_all(self, locks: Sequence[tuple[bytes, int]]) -> pb.TxnRequest:
        """All of these, which are ours if the lease lives."""
        dropping = self._dropping
        request = pb.TxnRequest.FromString(b"".join([name.join(dropping) for name, _ in locks]))
        # All keys of a lease die in one revision, and these are taken again only when they have
        # been dropped: if the first still has its fence, all are as they were. A try that was given
        # up and is carried out late does not find it. To compare every value would cost etcd a
        # fifth more of all that it does for a job.
        name, fence = locks[0]
        request.compare.add(key=name, target=pb.Compare.VALUE, value=self._value(fence))
        return request

    def drop_each(self, maybe_ours: Iterable[tuple[bytes, int]]) -> pb.TxnRequest:
        """Each that is ours, by its value: the job may have come back to us meanwhile, and that
        lock must stay.
        """
        return pb.TxnRequest(success=[self._drop(name, fence) for name, fence in maybe_ours])

    def _drop(self, name: bytes, fence: int) -> pb.RequestOp:
        ours = pb.Compare(key=name, target=pb.Compare.VALUE, value=self._value(fence))
        return pb.RequestOp(request_txn=pb.TxnRequest(compare=[ours], success=[_delete(name)]))


def _is_free(name: bytes) -> pb.Compare:
    return pb.Compare(key=name, target=pb.Compare.CREATE, create_revision=0)


def _delete(name: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))
