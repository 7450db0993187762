"""Tokens come back as they went out, or are refused."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.enqueue.domain.tokens import (
    MAX_VERSION,
    page_token,
    read_job_page_token,
    read_page_token,
    read_resume_token,
    resume_token,
)
from services.mesh.errors import PageTokenInvalid, ResumeTokenInvalid

JOB = "0190163d-8694-739b-aea5-966c26f8ad91"
ids = st.lists(st.uuids().map(str), min_size=1, max_size=20, unique=True)


@given(ids, st.data())
def test_a_resume_token_returns_every_version_whatever_the_order_of_the_ids(jobs, data):
    versions = {job: data.draw(st.integers(0, MAX_VERSION)) for job in jobs}
    token = resume_token(jobs, versions)
    assert read_resume_token(token, data.draw(st.permutations(jobs))) == versions


@given(ids, ids)
def test_a_resume_token_of_other_jobs_is_refused(jobs, others):
    token = resume_token(jobs, dict.fromkeys(jobs, 1))
    if set(jobs) != set(others):
        with pytest.raises(ResumeTokenInvalid):
            read_resume_token(token, others)


@given(st.text(max_size=200))
def test_garbage_is_no_resume_token(garbage):
    with pytest.raises(ResumeTokenInvalid):
        read_resume_token(garbage, [JOB])


@given(st.text(max_size=200).filter(bool))
def test_garbage_is_no_page_token(garbage):
    with pytest.raises(PageTokenInvalid):
        read_page_token(garbage, b"query")


def altered(token, **fields):
    """A token with other fields; those that are None are left out."""
    data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))) | fields
    kept = {name: value for name, value in data.items() if value is not None}
    return base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()


@pytest.mark.parametrize("version", [-1, 2**31 - 1, 2**31, 2**63, 2**70, True, 1.0, "1"])
def test_a_version_that_no_job_has_is_in_no_resume_token(version):
    token = resume_token([JOB], {JOB: 1})
    with pytest.raises(ResumeTokenInvalid):
        read_resume_token(altered(token, seen=[version]), [JOB])


def test_a_page_token_that_names_no_place_is_refused():
    with pytest.raises(PageTokenInvalid):
        read_page_token(altered(page_token(JOB, b"query"), after=None), b"query")


def test_what_is_nested_without_end_is_no_token():
    garbage = base64.urlsafe_b64encode(b"[" * 60_000).decode()
    with pytest.raises(ResumeTokenInvalid):
        read_resume_token(garbage, [JOB])
    with pytest.raises(PageTokenInvalid):
        read_page_token(garbage, b"query")


def test_a_page_token_goes_on_after_its_job_for_the_same_query_only():
    token = page_token(JOB, b"query")
    assert read_job_page_token(token, b"query") == JOB
    with pytest.raises(PageTokenInvalid):
        read_job_page_token(token, b"another query")


def test_a_page_token_of_schedules_is_no_page_token_of_jobs():
    with pytest.raises(PageTokenInvalid):
        read_job_page_token(page_token("nightly", b"query"), b"query")


def test_no_token_is_the_first_page():
    assert read_job_page_token("", b"query") == ""
