"""What several files of integration tests stand on."""

import pytest

from tests.integration.parts import orchestrator


@pytest.fixture
async def stand(shard_dsns, nats_url, etcd_endpoint, unique_prefix):
    """A running Orchestrator with a client of it, unless a file has a stand of its own."""
    async with orchestrator(shard_dsns, nats_url, etcd_endpoint, unique_prefix) as running:
        yield running
