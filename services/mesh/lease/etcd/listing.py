"""Reading all keys under a prefix, page by page, as of one revision."""

from __future__ import annotations

from etcd import kv_pb2

from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.failure import Refused
from services.mesh.lease.port import Entry

PAGE_SIZE = 1000


def to_entry(kv: kv_pb2.KeyValue) -> Entry:
    return Entry(kv.key.decode(), kv.value, kv.mod_revision, kv.lease)


def prefix_end(prefix: bytes) -> bytes:
    """The first key beyond all keys that start with `prefix`."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))


async def read_prefix(
    client: EtcdClient, prefix: str, page_size: int = PAGE_SIZE
) -> tuple[list[Entry], int]:
    """All entries by name, and the revision they stand at."""
    while True:
        try:
            return await _read_pages(client, prefix.encode(), page_size)
        except Refused as refused:
            # The revision was compacted away between two pages: the list must start over at a newer
            # one.
            if not refused.compacted:
                raise


async def _read_pages(client: EtcdClient, prefix: bytes, page_size: int) -> tuple[list[Entry], int]:
    entries: list[Entry] = []
    start, revision = prefix, 0
    while True:
        page = await client.range(start, prefix_end(prefix), limit=page_size, revision=revision)
        entries.extend(map(to_entry, page.kvs))
        revision = revision or page.header.revision
        if not page.more:
            return entries, revision
        start = page.kvs[-1].key + b"\0"
