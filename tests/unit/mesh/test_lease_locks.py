"""A lock that is given back and wanted again: the two must not overtake each other in etcd."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

from etcd import rpc_pb2 as pb

from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.lock_requests import LockRequests
from services.mesh.lease.etcd.locks import JobLocks
from services.mesh.lease.keys import Keys
from services.mesh.lease.port import Lease, LeaseState


class SlowEtcd:
    """Answers deletes when told to; every transaction succeeds."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.gate = asyncio.Event()

    async def txn(self, request, *, repeatable):
        kind = request.success[0].WhichOneof("request").removeprefix("request_")
        self.seen.append(kind)
        if kind == "delete_range":
            await self.gate.wait()
        return SimpleNamespace(succeeded=True)


def locks_of(etcd: object) -> JobLocks:
    lease = cast(Lease, SimpleNamespace(alive=True, lease_id=1, state=LeaseState.HELD))
    return JobLocks(cast(EtcdClient, etcd), Keys("/mesh"), lease, "w1")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_wants_a_lock_again_waits_until_its_giving_back_is_over():
    etcd, job, other = SlowEtcd(), uuid4().bytes, uuid4().bytes
    locks = locks_of(etcd)
    await locks.lock({job: 1})
    unlocking = asyncio.create_task(locks.unlock({job: 1}))
    await settle()
    again = asyncio.create_task(locks.lock({job: 2}))
    await settle()
    assert etcd.seen == ["put", "delete_range"]
    assert (await locks.lock({other: 1})).acquired == [other]  # which waits for nothing
    etcd.gate.set()
    await unlocking
    assert (await again).acquired == [job]
    assert etcd.seen == ["put", "delete_range", "put", "put"]


async def test_a_late_unlock_does_not_reach_a_lock_that_was_taken_again():
    etcd, job = SlowEtcd(), uuid4().bytes
    locks = locks_of(etcd)
    await locks.lock({job: 1})
    await locks.lock({job: 2})
    await locks.unlock({job: 1})
    assert etcd.seen == ["put", "put"]


class Etcd:
    """Runs transactions on its keys, each when the test lets it."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self.gated = False

    async def txn(self, request, *, repeatable):
        if self.gated:
            turn = asyncio.Event()
            self.waiting.put_nowait(turn)
            await turn.wait()
        return self._run(request)

    def _run(self, request: pb.TxnRequest) -> pb.TxnResponse:
        answer = pb.TxnResponse(succeeded=all(map(self._holds, request.compare)))
        for op in request.success if answer.succeeded else request.failure:
            part = answer.responses.add()
            if op.HasField("request_put"):
                self.keys[op.request_put.key] = op.request_put.value
            elif op.HasField("request_delete_range"):
                self.keys.pop(op.request_delete_range.key, None)
            elif op.HasField("request_txn"):
                part.response_txn.CopyFrom(self._run(op.request_txn))
        return answer

    def _holds(self, compare: pb.Compare) -> bool:
        if compare.target == pb.Compare.CREATE:
            return compare.key not in self.keys
        if compare.target == pb.Compare.VALUE:
            return self.keys.get(compare.key) == compare.value
        return compare.key in self.keys  # all have the one lease


async def test_an_unlock_that_begins_while_a_newer_fence_is_locked_leaves_that_alone():
    etcd, job = Etcd(), uuid4().bytes
    locks = locks_of(etcd)
    await locks.lock({job: 5})
    etcd.gated = True
    locking = asyncio.create_task(locks.lock({job: 6}))
    first_of_lock = await etcd.waiting.get()
    unlocking = asyncio.create_task(locks.unlock({job: 5}))  # it had waited behind others
    of_unlock = await etcd.waiting.get()
    first_of_lock.set()  # is refused: the key is there, with our lease
    (await etcd.waiting.get()).set()
    assert (await locking).acquired == [job]
    of_unlock.set()
    await unlocking
    assert list(etcd.keys.values()) == [b"w1/6"]
    etcd.gated = False
    await locks.unlock({job: 6})
    assert etcd.keys == {}


async def test_who_waits_for_a_giving_back_waits_for_one_that_began_meanwhile_too():
    etcd, (one, other) = SlowEtcd(), (uuid4().bytes for _ in range(2))
    locks = locks_of(etcd)
    await locks.lock({one: 5, other: 1})
    unlocking = [asyncio.create_task(locks.unlock({other: 1}))]
    await settle()
    again = asyncio.create_task(locks.lock({one: 6, other: 2}))
    await settle()
    first, etcd.gate = etcd.gate, asyncio.Event()
    unlocking.append(asyncio.create_task(locks.unlock({one: 5})))
    await settle()
    first.set()
    await settle()
    assert etcd.seen == ["put", "delete_range", "delete_range"]
    etcd.gate.set()
    await asyncio.gather(*unlocking)
    assert (await again).acquired == [one, other]


def test_a_request_for_many_locks_says_the_same_of_each():
    job, other = uuid4(), uuid4()
    requests = LockRequests("/mesh/locks/", "w1", 300)
    names = [requests.name(one.bytes) for one in (job, other)]
    assert names == [Keys("/mesh").lock(one).encode() for one in (job, other)]
    expected = pb.TxnRequest()
    for name, fence in zip(names, (1, 1234567), strict=True):
        expected.compare.add(key=name, target=pb.Compare.CREATE, create_revision=0)
        put = expected.success.add().request_put
        put.key, put.value, put.lease = name, b"w1/%d" % fence, 300
    assert requests.take_all([(names[0], 1), (names[1], 1234567)]) == expected


def test_locks_are_given_back_if_the_first_still_has_its_fence():
    requests = LockRequests("/mesh/locks/", "w1", 300)
    locks = [(requests.name(uuid4().bytes), fence) for fence in (7, 8, 9)]
    expected = pb.TxnRequest()
    # Not the lease: a try that is carried out late must not drop what was taken again since.
    expected.compare.add(key=locks[0][0], target=pb.Compare.VALUE, value=b"w1/7")
    for name, _ in locks:
        expected.success.add().request_delete_range.key = name
    assert requests.drop_all(locks) == expected


class CountingEtcd:
    """Grants everything, and remembers how wide each transaction was, group by group."""

    def __init__(self) -> None:
        self.widths: list[list[int]] = []

    async def txn(self, request, *, repeatable):
        groups = [op.request_txn for op in request.success if op.HasField("request_txn")]
        self.widths.append([len(group.success) for group in groups or [request]])
        granted = SimpleNamespace(response_txn=SimpleNamespace(succeeded=True))
        return SimpleNamespace(succeeded=True, responses=[granted for _ in groups])


async def test_a_batch_is_one_transaction_within_what_etcd_allows():
    etcd = CountingEtcd()
    locks = locks_of(etcd)
    few, many = ({uuid4().bytes: 1 for _ in range(count)} for count in (128, 500))
    for fences in (few, many):
        assert (await locks.lock(fences)).acquired == list(fences)
        await locks.unlock(fences)
    assert etcd.widths[:2] == [[128], [128]]
    for widths in etcd.widths[2:]:
        assert sum(widths) == 500
        # etcd takes the width of a level off what the next may have.
        assert max(widths) + len(widths) <= 128
    assert len(etcd.widths) == 4
