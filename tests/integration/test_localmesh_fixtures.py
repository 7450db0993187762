"""The server fixtures give each test real servers and names of its own."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import nats
import psycopg

if TYPE_CHECKING:
    from localmesh.providers import S3Settings
    from mypy_boto3_s3 import S3Client


def test_each_test_gets_an_empty_database(shard_dsn: str) -> None:
    with psycopg.connect(shard_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE jobs (id int)")
        row = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE tablename = 'jobs'"
        ).fetchone()
    assert row == (1,)


def test_three_shards_are_three_databases(shard_dsns: list[str], postgres_dsns: list[str]) -> None:
    names = set()
    for dsn in shard_dsns + postgres_dsns:
        with psycopg.connect(dsn) as connection:
            names.add(connection.info.dbname)
    assert len(names) == 6


def test_shards_commit_durably(shard_dsn: str) -> None:
    with psycopg.connect(shard_dsn) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert connection.execute(f"SHOW {setting}".encode()).fetchone() == ("on",), setting


async def test_nats_delivers(nats_url: str, unique_prefix: str) -> None:
    client = await nats.connect(nats_url)
    subscription = await client.subscribe(f"{unique_prefix}.due")
    await client.publish(f"{unique_prefix}.due", b"now")
    message = await subscription.next_msg(timeout=5)
    await client.close()
    assert message.data == b"now"


def test_etcd_is_healthy(etcd_endpoint: str) -> None:
    with urllib.request.urlopen(f"{etcd_endpoint}/health", timeout=5) as answer:
        assert b"true" in answer.read()


def test_s3_keeps_an_object(s3_settings: S3Settings, s3_client: S3Client) -> None:
    s3_client.put_object(Bucket=s3_settings.input_bucket, Key="a/b", Body=b"payload")
    body = s3_client.get_object(Bucket=s3_settings.input_bucket, Key="a/b")["Body"].read()
    assert body == b"payload"
