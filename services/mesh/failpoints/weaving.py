"""Wraps the methods that places name. Done once, before anything of a service is made."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any

from services.mesh.failpoints.acting import Actor
from services.mesh.failpoints.place import When
from services.mesh.failpoints.registry import Failpoints, Point

Method = Callable[..., Any]


def weave(failpoints: Failpoints, actor: Actor) -> None:
    """Wrap every method in which this process has a place."""
    for point in failpoints.points.values():
        place = point.place
        method = inspect.getattr_static(place.owner, place.method)
        setattr(place.owner, place.method, woven(method, point, actor))


def woven(method: Method, point: Point, actor: Actor) -> Method:
    """The method with a place before or after it."""
    before = point.place.when is When.BEFORE
    if inspect.iscoroutinefunction(method):
        return _before(method, point, actor) if before else _after(method, point, actor)
    if inspect.isasyncgenfunction(method):
        return _around_stream(method, point, actor)
    return _before_plain(method, point, actor) if before else _after_plain(method, point, actor)


def _before(method: Method, point: Point, actor: Actor) -> Method:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        order = point.reached()
        if order is not None and await actor.act(point, order):
            return None
        return await method(*args, **kwargs)

    return call


def _after(method: Method, point: Point, actor: Actor) -> Method:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        result = await method(*args, **kwargs)
        order = point.reached()
        if order is not None and await actor.act(point, order):
            # Nobody gets the answer; whoever waits for it gives up by a deadline of its own.
            await asyncio.Event().wait()
        return result

    return call


def _around_stream(method: Method, point: Point, actor: Actor) -> Method:
    """A stream is struck before its first item, or before each item it gives."""
    each = point.place.when is When.AFTER

    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        stream = method(*args, **kwargs)
        try:
            if not each and (order := point.reached()) is not None:
                await actor.act(point, order)
            async for item in stream:
                order = point.reached() if each else None
                if order is None or not await actor.act(point, order):
                    yield item
        finally:
            await stream.aclose()

    return call


def _before_plain(method: Method, point: Point, actor: Actor) -> Method:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        order = point.reached()
        if order is not None and actor.act_now(point, order):
            return None
        return method(*args, **kwargs)

    return call


def _after_plain(method: Method, point: Point, actor: Actor) -> Method:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        order = point.reached()
        if order is not None:
            actor.act_now(point, order)
        return result

    return call
