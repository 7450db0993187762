"""Job ids carry their bucket, sort by time and are read strictly."""

from __future__ import annotations

import hashlib
from random import Random
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.mesh.jobs.ids import (
    BUCKETS,
    bucket_for_key,
    bucket_of,
    bucket_of_bytes,
    first_id_at,
    from_bytes,
    new_job_id,
    new_job_keys,
    parse,
    time_ms_of,
)

BUCKET = st.integers(0, BUCKETS - 1)
TIME = st.integers(0, (1 << 48) - 1)
SEED = st.integers(0, 1 << 32).map(Random)


@given(BUCKET, TIME, SEED)
def test_an_id_is_a_version_7_uuid_that_names_its_bucket_and_time(bucket, time_ms, random):
    job_id = new_job_id(bucket, time_ms, random)
    assert job_id.version == 7
    assert job_id.variant == "specified in RFC 4122"
    assert bucket_of(job_id) == bucket
    assert time_ms_of(job_id) == time_ms


@given(BUCKET, BUCKET, TIME, TIME, SEED)
def test_ids_sort_by_time_first(bucket, other, early, late, random):
    if early < late:
        assert new_job_id(bucket, early, random) < new_job_id(other, late, random)


@given(BUCKET, TIME, SEED)
def test_the_first_id_of_a_moment_is_not_above_any_other(bucket, time_ms, random):
    assert first_id_at(time_ms) <= new_job_id(bucket, time_ms, random)


@given(BUCKET, TIME, SEED)
def test_text_and_bytes_read_back(bucket, time_ms, random):
    job_id = new_job_id(bucket, time_ms, random)
    assert parse(str(job_id)) == job_id
    assert from_bytes(job_id.bytes) == job_id


@pytest.mark.parametrize("bucket", [-1, BUCKETS])
def test_a_bucket_out_of_range_is_refused(bucket):
    with pytest.raises(ValueError, match="bucket"):
        new_job_id(bucket, 0, Random(1))


JOB_ID = str(new_job_id(7, 1_700_000_000_000, Random(1)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job",
        JOB_ID.upper(),
        JOB_ID.replace("-", ""),
        f"{{{JOB_ID}}}",
        f" {JOB_ID}",
        "12345678-1234-4678-a234-567812345678",
    ],
)
def test_any_other_form_of_an_id_is_refused(text):
    with pytest.raises(ValueError, match="not a job id"):
        parse(text)


NOT_VERSION_7 = UUID("12345678-1234-4678-a234-567812345678").bytes


@pytest.mark.parametrize("data", [b"", b"x" * 15, b"x" * 17, NOT_VERSION_7])
def test_other_bytes_are_no_id(data):
    with pytest.raises(ValueError, match="job id"):
        from_bytes(data)


@given(st.text(), st.text())
def test_the_bucket_of_a_key_is_the_first_twelve_bits_of_its_hash(namespace, key):
    namespace, key = (text.encode("utf-8", "ignore").decode() for text in (namespace, key))
    assume(not key.startswith("{"))
    digest = hashlib.sha256(namespace.encode() + b"\0" + key.encode()).hexdigest()
    assert bucket_for_key(namespace, key) == int(digest[:3], 16)


@given(tag=st.text('abc0:-/"', min_size=1), one=st.text(), two=st.text())
def test_keys_that_begin_with_the_same_tag_share_a_bucket(tag, one, two):
    one, two = (text.encode("utf-8", "ignore").decode() for text in (one, two))
    bucket = bucket_for_key("n", f"{{{tag}}}{one}")
    assert bucket == bucket_for_key("n", f"{{{tag}}}{two}") == bucket_for_key("n", tag)


@pytest.mark.parametrize("key", ["{}a", "{a", "a{b}", "}{", "{"])
def test_what_is_no_tag_counts_as_a_whole(key):
    digest = hashlib.sha256(b"n\0" + key.encode()).hexdigest()
    assert bucket_for_key("n", key) == int(digest[:3], 16)


def test_keys_spread_evenly_over_buckets():
    counts = [0] * 16
    for number in range(16_000):
        counts[bucket_for_key("n", f"key-{number}") * 16 // BUCKETS] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


@given(st.lists(st.integers(0, BUCKETS - 1), max_size=20), st.integers(0, 2**48 - 1))
def test_ids_minted_together_are_ids_in_their_buckets(buckets, now_ms):
    minted = [from_bytes(key) for key in new_job_keys(buckets, now_ms, Random(1))]
    assert [bucket_of(job_id) for job_id in minted] == buckets
    assert {time_ms_of(job_id) for job_id in minted} <= {now_ms}
    assert len(set(minted)) == len(buckets)
    assert all(parse(str(job_id)) == job_id for job_id in minted)
    assert [bucket_of_bytes(job_id.bytes) for job_id in minted] == buckets


def test_ids_are_uuids():
    assert isinstance(parse(JOB_ID), UUID)
