"""The Scaler's RPCs on pools, against a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from jobmesh.v1 import pool_pb2, type_settings_pb2
from jobmesh.v1 import scaler_service_pb2 as pb

from services.mesh.errors import (
    EtagMismatch,
    InvalidField,
    PageTokenInvalid,
    PoolExists,
    PoolNotFound,
)
from services.mesh.testing.waiting import eventually
from tests.integration.scaler_rig import Replica, Rig, counts, load, rigged, spec


@pytest.fixture
async def rig(etcd_endpoint: str, unique_prefix: str, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(etcd_endpoint, unique_prefix, tmp_path) as rig:
        yield rig


@pytest.fixture
async def scaler(rig: Rig) -> Replica:
    return await rig.scaler()


def watched(type_: str, **values: Any) -> pool_pb2.PoolSpec:
    """A pool that somebody else runs."""
    return pool_pb2.PoolSpec(type=type_, **values)


async def test_created_pool_has_its_defaults_filled_in(scaler: Replica) -> None:
    spec = (await scaler.create(watched("render"))).spec
    assert (spec.min_workers, spec.max_workers, spec.target_backlog_per_worker) == (0, 4, 100)
    assert spec.high_alarm_backlog == 1
    assert (spec.empty_for.seconds, spec.cooldown.seconds, spec.drain_timeout.seconds) == (
        10,
        10,
        30,
    )
    assert not spec.HasField("process")


async def test_creating_a_pool_makes_its_type_known(scaler: Replica, rig: Rig) -> None:
    await scaler.create(watched("render"))
    assert await rig.registry.get(rig.keys.type("render")) is not None
    await scaler.stub.DeletePool(pb.DeletePoolRequest(type="render"))
    assert await rig.registry.get(rig.keys.type("render")) is not None


async def test_creating_the_same_pool_again_returns_it(scaler: Replica) -> None:
    first = await scaler.create(watched("render", max_workers=7))
    second = await scaler.create(watched("render", max_workers=7))
    assert (second.etag, second.spec) == (first.etag, first.spec)


async def test_creating_another_pool_for_the_type_is_refused(scaler: Replica) -> None:
    await scaler.create(watched("render", max_workers=7))
    with pytest.raises(PoolExists):
        await scaler.create(watched("render", max_workers=8))


async def test_unknown_pool_is_not_found(scaler: Replica) -> None:
    for call in (
        scaler.stub.GetPool(pb.GetPoolRequest(type="nobody")),
        scaler.stub.DeletePool(pb.DeletePoolRequest(type="nobody")),
        scaler.stub.SetDesired(pb.SetDesiredRequest(type="nobody", desired=1)),
        scaler.stub.ExplainDecision(pb.ExplainDecisionRequest(type="nobody")),
        scaler.stub.UpdatePool(pb.UpdatePoolRequest(spec=watched("nobody"))),
    ):
        with pytest.raises(PoolNotFound):
            await call


async def test_update_takes_only_the_fields_of_the_mask(scaler: Replica) -> None:
    await scaler.create(watched("render", max_workers=7, min_workers=2))
    request = pb.UpdatePoolRequest(
        spec=pool_pb2.PoolSpec(type="render", max_workers=9, cooldown=Duration(seconds=3)),
        update_mask=FieldMask(paths=["max_workers", "cooldown"]),
    )
    spec = (await scaler.stub.UpdatePool(request)).pool.spec
    assert (spec.min_workers, spec.max_workers, spec.cooldown.seconds) == (2, 9, 3)


async def test_update_without_a_mask_takes_everything(scaler: Replica) -> None:
    await scaler.create(watched("render", max_workers=7, min_workers=2))
    request = pb.UpdatePoolRequest(spec=watched("render", max_workers=9))
    spec = (await scaler.stub.UpdatePool(request)).pool.spec
    assert (spec.min_workers, spec.max_workers) == (0, 9)


async def test_update_reaches_into_the_driver(scaler: Replica) -> None:
    spec = watched("render", max_workers=1)
    spec.process.app = "shop.jobs"
    await scaler.create(spec)
    change = pool_pb2.PoolSpec(type="render")
    change.process.app, change.process.capacity = "not.taken", 3
    request = pb.UpdatePoolRequest(spec=change, update_mask=FieldMask(paths=["process.capacity"]))
    process = (await scaler.stub.UpdatePool(request)).pool.spec.process
    assert (process.app, process.capacity) == ("shop.jobs", 3)


@pytest.mark.parametrize("path", ["colour", "process.colour", "max_workers.x", "cooldown.x"])
async def test_unknown_path_in_the_mask_is_refused(scaler: Replica, path: str) -> None:
    request = pb.UpdatePoolRequest(spec=watched("render"), update_mask=FieldMask(paths=[path]))
    with pytest.raises(InvalidField, match=path):
        await scaler.stub.UpdatePool(request)


async def test_update_that_crosses_the_bounds_is_refused(scaler: Replica) -> None:
    await scaler.create(watched("render", max_workers=3))
    request = pb.UpdatePoolRequest(
        spec=watched("render", min_workers=5), update_mask=FieldMask(paths=["min_workers"])
    )
    with pytest.raises(InvalidField, match="max_workers"):
        await scaler.stub.UpdatePool(request)


async def test_update_with_an_old_etag_is_aborted(scaler: Replica) -> None:
    first = await scaler.create(watched("render"))
    request = pb.UpdatePoolRequest(spec=watched("render", max_workers=9), etag=first.etag)
    second = (await scaler.stub.UpdatePool(request)).pool
    assert second.etag != first.etag
    request.spec.max_workers = 10
    with pytest.raises(EtagMismatch):
        await scaler.stub.UpdatePool(request)


async def test_updates_at_the_same_time_are_all_kept(scaler: Replica) -> None:
    await scaler.create(watched("render", max_workers=50))
    paths = {"min_workers": 2, "target_backlog_per_worker": 7, "high_alarm_backlog": 3}
    await asyncio.gather(
        *(
            scaler.stub.UpdatePool(
                pb.UpdatePoolRequest(
                    spec=watched("render", **{path: value}), update_mask=FieldMask(paths=[path])
                )
            )
            for path, value in paths.items()
        )
    )
    spec = (await scaler.pool("render")).spec
    assert {path: getattr(spec, path) for path in paths} == paths


async def test_rules_of_the_contract_are_enforced(scaler: Replica) -> None:
    with pytest.raises(InvalidField):
        await scaler.create(watched("Not A Type"))


async def test_pools_are_listed_by_type_in_pages(scaler: Replica) -> None:
    for type_ in ("c", "a", "b"):
        await scaler.create(watched(type_))
    first = await scaler.stub.ListPools(pb.ListPoolsRequest(page_size=2))
    assert [pool.spec.type for pool in first.pools] == ["a", "b"]
    request = pb.ListPoolsRequest(page_size=2, page_token=first.next_page_token)
    second = await scaler.stub.ListPools(request)
    assert [pool.spec.type for pool in second.pools] == ["c"]
    assert second.next_page_token == ""


@pytest.mark.parametrize("token", ["nonsense", "bm9ib2R5", "é"])
async def test_foreign_page_token_is_refused(scaler: Replica, token: str) -> None:
    with pytest.raises(PageTokenInvalid):
        await scaler.stub.ListPools(pb.ListPoolsRequest(page_token=token))


async def test_watch_tells_the_present_then_every_change(scaler: Replica) -> None:
    await scaler.create(watched("render"))
    call = scaler.stub.WatchPools(pb.WatchPoolsRequest(types=["render"]))
    stream = aiter(call)
    first = await anext(stream)
    assert first.pool.spec.type == "render"
    await scaler.create(watched("other"))
    await scaler.stub.SetDesired(pb.SetDesiredRequest(type="render", desired=2))
    seen = await anext(stream)
    while seen.pool.desired != 2:
        assert seen.pool.spec.type == "render"
        seen = await anext(stream)
    await scaler.stub.DeletePool(pb.DeletePoolRequest(type="render"))
    while not seen.deleted:
        seen = await anext(stream)
    assert seen.pool.spec.type == "render"
    call.cancel()


async def test_watch_ends_politely_when_the_scaler_drains(scaler: Replica) -> None:
    await scaler.create(watched("render"))
    stream = aiter(scaler.stub.WatchPools(pb.WatchPoolsRequest()))
    await anext(stream)
    scaler.process.stop("test")
    async for _ in stream:
        pass
    assert await scaler.ended == 0


async def test_hold_is_kept_with_the_pool_and_given_back(scaler: Replica, rig: Rig) -> None:
    await scaler.create(watched("render"))
    await scaler.stub.SetDesired(pb.SetDesiredRequest(type="render", desired=3))
    held = await scaler.until("render", lambda pool: pool.desired == 3)
    assert held.decision.reason == pool_pb2.DECISION_REASON_MANUAL
    await scaler.stop()
    other = await rig.scaler()
    again = await other.until("render", lambda pool: pool.desired == 3)
    assert again.decision.reason == pool_pb2.DECISION_REASON_MANUAL
    await eventually(lambda: other.leads)
    await other.stub.SetDesired(pb.SetDesiredRequest(type="render"))
    await other.until(
        "render", lambda pool: pool.decision.reason != pool_pb2.DECISION_REASON_MANUAL
    )


async def test_hold_ends_by_itself(scaler: Replica) -> None:
    spec = watched("render")
    for span in (spec.empty_for, spec.cooldown):
        span.FromMilliseconds(50)
    await scaler.create(spec)
    request = pb.SetDesiredRequest(type="render", desired=3)
    request.hold.FromMilliseconds(200)
    await scaler.stub.SetDesired(request)
    await scaler.until("render", lambda pool: pool.desired == 3)
    rested = await scaler.until("render", lambda pool: pool.desired == 0, seconds=4)
    assert rested.decision.previous == 3


async def test_a_pool_grows_as_far_as_the_limit_of_its_type_can_use(
    scaler: Replica, rig: Rig
) -> None:
    settings = rig.keys.type_settings + "render"
    limit = type_settings_pb2.TypeSettings(max_running=2)
    await rig.registry.put(settings, limit.SerializeToString())
    pool = spec("render", max_workers=4)
    pool.process.capacity = 1
    await scaler.create(pool)
    await rig.orchestrator.say(load("render", backlog=100))
    limited = await scaler.until("render", lambda pool: pool.actual == 2)
    assert limited.desired == 2
    assert limited.decision.reason == pool_pb2.DECISION_REASON_LIMITED
    limit.max_running = 3
    await rig.registry.put(settings, limit.SerializeToString())
    await scaler.until("render", lambda pool: counts(pool) == (3, 3, 0, 0))
    await rig.registry.delete(settings)
    await scaler.until("render", lambda pool: counts(pool) == (4, 4, 0, 0))
