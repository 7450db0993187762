"""Following a prefix: list, report the difference, then stream; after any break, the same again.

Listing anew is what makes this simple and sure. It does not matter whether the stream broke because
the connection did, because our revision was compacted away, because we read too slowly, or because
etcd was rebuilt and counts its revisions from one again: the difference between what we reported
and what there is, is what the reader has to learn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import grpc
from etcd import kv_pb2
from etcd import rpc_pb2 as pb

from services.mesh.errors import DependencyUnavailable
from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.listing import PAGE_SIZE, prefix_end, read_prefix, to_entry
from services.mesh.lease.port import Deleted, Entry, Put, Snapshot, WatchEvent
from services.mesh.runtime import Backoff

log = logging.getLogger(__name__)

BACKOFF = Backoff(first=0.05, ceiling=1.0)


async def watch_prefix(
    client: EtcdClient, prefix: str, *, page_size: int = PAGE_SIZE
) -> AsyncGenerator[WatchEvent, None]:
    """A Snapshot, then Put and Deleted without end."""
    known: dict[str, Entry] | None = None
    failures = 0
    while True:
        try:
            listed, revision = await read_prefix(client, prefix, page_size)
            failures = 0
            if known is None:
                known = {entry.key: entry for entry in listed}
                yield Snapshot(dict(known))
            else:
                for event in _difference(known, listed, revision):
                    yield _applied(known, event)
            async with aclosing(_stream(client, prefix, revision + 1)) as changes:
                async for change in changes:
                    if (news := _event(known, change)) is not None:
                        yield _applied(known, news)
        except DependencyUnavailable as error:
            log.warning(
                "watch broke off",
                extra={"action": "watch_broken", "prefix": prefix, "error": str(error)},
            )
        failures += 1
        await asyncio.sleep(BACKOFF.delay(failures))


async def _stream(
    client: EtcdClient, prefix: str, start_revision: int
) -> AsyncGenerator[kv_pb2.Event, None]:
    """Events from `start_revision` on, until the watcher ends."""
    name = prefix.encode()
    watcher = pb.WatchCreateRequest(
        key=name, range_end=prefix_end(name), start_revision=start_revision, fragment=True
    )
    async with client.watch_stream(watcher) as stream:
        while True:
            response = await stream.read()
            if response is grpc.aio.EOF or not isinstance(response, pb.WatchResponse):
                return
            if response.created and response.header.revision < start_revision - 1:
                # This etcd has not come as far as our list: it was rebuilt, or is behind.
                return
            if response.canceled:
                log.info(
                    "watch ended by etcd",
                    extra={
                        "action": "watch_cancelled",
                        "prefix": prefix,
                        "reason": response.cancel_reason,
                        "compacted": response.compact_revision,
                    },
                )
                return
            for event in response.events:
                yield event


def _event(known: dict[str, Entry], change: kv_pb2.Event) -> Put | Deleted | None:
    if change.type == kv_pb2.Event.PUT:
        return Put(to_entry(change.kv))
    last = known.get(change.kv.key.decode())
    return Deleted(last, change.kv.mod_revision) if last is not None else None


def _difference(
    known: dict[str, Entry], listed: list[Entry], revision: int
) -> Iterator[Put | Deleted]:
    """What must be reported so that the reader of `known` arrives at `listed`."""
    present = {entry.key for entry in listed}
    yield from [Deleted(entry, revision) for key, entry in known.items() if key not in present]
    yield from [Put(entry) for entry in listed if known.get(entry.key) != entry]


def _applied(known: dict[str, Entry], event: Put | Deleted) -> Put | Deleted:
    if isinstance(event, Put):
        known[event.entry.key] = event.entry
    else:
        known.pop(event.entry.key, None)
    return event
