"""Places that were taken and that nobody is going to use are given back while the lease lives."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from etcd import rpc_pb2 as pb

from services.mesh.lease import Keys, Lease, LeaseLost, LeaseState, Limit, PlaceWish
from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.failure import Refused
from services.mesh.lease.etcd.places import EtcdPlaces

KEYS = Keys("/mesh")
ONE = Limit("t/all", 1)
TWO = Limit("t/all", 2)


class Etcd:
    """Holds keys. `before` is called with the number of each taking, `after` when it was done."""

    def __init__(self) -> None:
        self.keys: dict[bytes, bytes] = {}
        self.takings = 0
        self.before: Callable[[int], None] = lambda number: None
        self.after: Callable[[], None] = lambda: None
        self.dropped = asyncio.Event()

    async def txn(self, request: pb.TxnRequest, *, repeatable: bool) -> pb.TxnResponse:
        if any(op.HasField("request_range") for op in request.success):
            return self._look(request)
        nested = [op.request_txn for op in request.success]
        takes = nested[0].success[0].HasField("request_put")
        if takes:
            self.takings += 1
            self.before(self.takings)
        answer = pb.TxnResponse(succeeded=True)
        for one in nested:
            answer.responses.add().response_txn.succeeded = self._run(one)
        if takes:
            self.after()
        return answer

    def _look(self, request: pb.TxnRequest) -> pb.TxnResponse:
        answer = pb.TxnResponse(succeeded=True)
        for op in request.success:
            kvs = answer.responses.add().response_range.kvs
            first, end = op.request_range.key, op.request_range.range_end
            for key, value in self.keys.items():
                if first <= key < end:
                    kvs.add(key=key, value=value)
        return answer

    def _run(self, request: pb.TxnRequest) -> bool:
        op = request.success[0]
        if op.HasField("request_put"):
            if op.request_put.key in self.keys:
                return False
            self.keys[op.request_put.key] = op.request_put.value
            return True
        key = op.request_delete_range.key
        if self.keys.get(key) != request.compare[0].value:
            return False
        del self.keys[key]
        self.dropped.set()
        return True


class World:
    def __init__(self) -> None:
        self.etcd = Etcd()
        self.lease = SimpleNamespace(alive=True, lease_id=1, state=LeaseState.HELD)
        self.places = self.places_with(max_txn_ops=128)

    def places_with(self, *, max_txn_ops: int) -> EtcdPlaces:
        client, lease = cast(EtcdClient, self.etcd), cast(Lease, self.lease)
        return EtcdPlaces(client, KEYS, lease, max_txn_ops=max_txn_ops)

    async def given_back(self) -> None:
        async with asyncio.timeout(5):
            await self.etcd.dropped.wait()
        assert self.etcd.keys == {}


@pytest.fixture
def world() -> World:
    return World()


async def test_a_place_whose_answer_came_too_late_to_be_trusted_is_given_back(
    world: World,
) -> None:
    def late() -> None:
        world.lease.alive, world.lease.state = False, LeaseState.DOUBTFUL

    world.etcd.after = late
    with pytest.raises(LeaseLost):
        await world.places.take([PlaceWish("a", (ONE,))])
    assert len(world.etcd.keys) == 1
    world.lease.alive, world.lease.state = True, LeaseState.HELD  # the next renewal
    await world.given_back()
    world.etcd.after = lambda: None
    assert (await world.places.take([PlaceWish("b", (ONE,))])).taken


@pytest.mark.parametrize("details", ["etcdserver: requested lease not found", "no space"])
async def test_what_was_taken_before_etcd_refused_the_rest_is_given_back(
    world: World, details: str
) -> None:
    def refuse(number: int) -> None:
        if number == 2:
            code = grpc.StatusCode.NOT_FOUND
            raise Refused(
                grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
            )

    world.etcd.before = refuse
    places = world.places_with(max_txn_ops=1)  # one taking for each
    with pytest.raises(LeaseLost if "lease" in details else Refused):
        await places.take([PlaceWish(owner, (TWO,)) for owner in ("a", "b")])
    assert list(world.etcd.keys.values()) == [b"a"]
    await world.given_back()
