"""Server fixtures for every test folder.

Each server is started when the first test asks for it, once per process (so once per xdist worker);
each test gets a database, buckets and name prefixes of its own in it. Where the servers come from:
`localmesh.providers`.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from localmesh.providers import S3Address, S3Settings, TestServers

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# How long an example takes says more about the machine than about the code. And the same tree must
# be judged the same each time: `HYPOTHESIS=explore` looks for new examples instead.
settings.register_profile("jobmesh", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS", "jobmesh"))

SOURCES = pytest.StashKey[dict[str, str]]()
SHARDS = 3


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Iterator[TestServers]:
    """The servers of this process, each started when first asked for."""
    started = TestServers.from_environment()
    try:
        yield started
    finally:
        pytestconfig.stash.setdefault(SOURCES, {}).update(started.sources)
        started.close()


@pytest.fixture(scope="session")
def postgres_dsns(servers: TestServers) -> Iterator[list[str]]:
    """Three shard databases that live as long as the session."""
    names = [f"session_{index}_{uuid.uuid4().hex[:8]}" for index in range(SHARDS)]
    with _databases(servers.postgres(), names) as dsns:
        yield dsns


@pytest.fixture
def shard_dsn(servers: TestServers) -> Iterator[str]:
    """A fresh, empty database for this test."""
    with _databases(servers.postgres(), [f"t_{uuid.uuid4().hex[:12]}"]) as dsns:
        yield dsns[0]


@pytest.fixture(scope="session")
def shard_templates(servers: TestServers) -> Iterator[list[str]]:
    """The names of databases that are migrated shards `s0`, `s1` and `s2`, to make others like
    them: a copy takes a quarter of the time of the migrations.
    """
    from services.mesh.store.postgres import PostgresShard

    names = [f"template_{index}_{uuid.uuid4().hex[:8]}" for index in range(SHARDS)]
    with _databases(servers.postgres(), names) as dsns:
        for index, dsn in enumerate(dsns):
            asyncio.run(PostgresShard(f"s{index}", dsn).migrate())
        yield names


@pytest.fixture
def migrated_dsn(servers: TestServers, shard_templates: list[str]) -> Iterator[str]:
    """A fresh shard `s0` for this test."""
    names = [f"t_{uuid.uuid4().hex[:12]}"]
    with _databases(servers.postgres(), names, shard_templates) as dsns:
        yield dsns[0]


@pytest.fixture
def shard_dsns(servers: TestServers, shard_templates: list[str]) -> Iterator[list[str]]:
    """Fresh shards `s0`, `s1` and `s2` for this test."""
    names = [f"t_{uuid.uuid4().hex[:12]}_{index}" for index in range(SHARDS)]
    with _databases(servers.postgres(), names, shard_templates) as dsns:
        yield dsns


@pytest.fixture(scope="session")
def nats_url(servers: TestServers) -> str:
    """A NATS server. Shared: put your subjects under `unique_prefix`."""
    return servers.nats()


@pytest.fixture(scope="session")
def etcd_endpoint(servers: TestServers) -> str:
    """An etcd member (http://host:port). Shared: put your keys under `unique_prefix`."""
    return servers.etcd()


@pytest.fixture(scope="session")
def s3_address(servers: TestServers) -> S3Address:
    """An S3 endpoint with its keys."""
    return servers.s3()


@pytest.fixture(scope="session")
def s3_client(s3_address: S3Address) -> Iterator[S3Client]:
    """A boto3 client of the S3 endpoint."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=s3_address.endpoint,
        region_name=s3_address.region,
        aws_access_key_id=s3_address.access_key,
        aws_secret_access_key=s3_address.secret_key,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    yield client
    client.close()


@pytest.fixture
def s3_settings(s3_address: S3Address, s3_client: S3Client) -> Iterator[S3Settings]:
    """The S3 endpoint with two fresh buckets for this test."""
    token = uuid.uuid4().hex[:12]
    buckets = (f"input-{token}", f"output-{token}")
    for bucket in buckets:
        s3_client.create_bucket(Bucket=bucket)
    yield S3Settings(
        s3_address.endpoint,
        s3_address.region,
        s3_address.access_key,
        s3_address.secret_key,
        *buckets,
    )
    for bucket in buckets:
        _remove_bucket(s3_client, bucket)


@pytest.fixture
def unique_prefix() -> str:
    """A name no other test has: for NATS subjects (as it is) and etcd keys (after a slash)."""
    return f"t{uuid.uuid4().hex[:12]}"


class _databases:  # noqa: N801 - reads as a function: `with _databases(...) as dsns`
    """Databases that exist within the block."""

    def __init__(
        self,
        admin_dsn: str,
        names: list[str],
        templates: Iterable[str] = (),
    ) -> None:
        self._dsn = admin_dsn
        self._names = names
        self._templates = chain(templates, repeat("template1"))

    def __enter__(self) -> list[str]:
        # File by file it takes half as long as through the log, and so does its end.
        copy = 'CREATE DATABASE "{}" TEMPLATE "{}" STRATEGY file_copy'
        self._execute(map(copy.format, self._names, self._templates))
        return [_with_database(self._dsn, name) for name in self._names]

    def __exit__(self, *_: object) -> None:
        self._execute(map('DROP DATABASE "{}" WITH (FORCE)'.format, self._names))

    def _execute(self, statements: Iterable[str]) -> None:
        """On a connection of its own: a test that runs out of time in the middle of a statement
        would leave one that no other test can use.
        """
        import psycopg

        with psycopg.connect(self._dsn, autocommit=True) as admin:
            for statement in statements:
                admin.execute(statement.encode())


def _with_database(dsn: str, name: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


def _remove_bucket(client: S3Client, bucket: str) -> None:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", []):
            client.delete_object(Bucket=bucket, Key=item["Key"])
    client.delete_bucket(Bucket=bucket)


# --- one line at the end: which server came from where ---


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # an xdist worker: hand it to the controller
        output["jobmesh_sources"] = session.config.stash.get(SOURCES, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    sources = getattr(node, "workeroutput", {}).get("jobmesh_sources", {})
    node.config.stash.setdefault(SOURCES, {}).update(sources)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    sources = config.stash.get(SOURCES, {})
    if sources:
        text = ", ".join(f"{server} from {source}" for server, source in sorted(sources.items()))
        terminalreporter.write_line(f"servers: {text}")
    _show_second_tries(terminalreporter)


def _show_second_tries(reporter: Any) -> None:
    """A test that passed only at its second try is green, but not unseen."""
    for report in reporter.stats.get("rerun", ()):
        reporter.write_sep("_", f"RERUN {report.nodeid} ({report.when})", yellow=True)
        reporter.write_line(report.longreprtext)
