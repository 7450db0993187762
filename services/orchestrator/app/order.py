"""One shard's events in the shard's own order: what a watch by filter reads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from services.mesh.jobs.model import Position
from services.mesh.store.answers import EventPage
from services.orchestrator.app.shards import Shards

DEFAULT_PAGE = 1000


async def page_of_events(
    shards: Shards,
    shard: str,
    after: Position | None,
    *,
    namespaces: Collection[str] = (),
    types: Collection[str] = (),
    page_size: int = 0,
) -> EventPage:
    """A page after a position; without one, only where the shard's order ends now.

    What is not selected is left out of the page, but counts for its size: a page costs the shard
    the same whatever is selected.
    """
    page = await shards.store(shard).events_since(after, page_size or DEFAULT_PAGE)
    if not namespaces and not types:
        return page
    of, kinds = frozenset(namespaces), frozenset(types)
    wanted = [
        event
        for event in page.events
        if (not of or event.namespace in of) and (not kinds or event.type in kinds)
    ]
    return replace(page, events=wanted)
