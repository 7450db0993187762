"""Addresses and names of the lease port."""

from __future__ import annotations

from uuid import UUID

import pytest

from services.mesh.lease import Keys, LockOwner
from services.mesh.lease.etcd import EtcdSettings
from services.mesh.lease.etcd.listing import prefix_end

JOB = UUID("0190a8b4-0000-7000-8000-000000000001")


@pytest.mark.parametrize(
    ("endpoints", "targets"),
    [
        (("127.0.0.1:2379",), ["127.0.0.1:2379"]),
        (("http://a:1,b:2",), ["a:1", "b:2"]),
        (("http://a:1", "https://b:2/"), ["a:1", "b:2"]),
        (("[::1]:2379",), ["[::1]:2379"]),
    ],
)
def test_endpoints_come_in_several_forms(endpoints: tuple[str, ...], targets: list[str]) -> None:
    assert EtcdSettings(endpoints).targets() == targets


@pytest.mark.parametrize("endpoint", ["", "host", "ftp://host:1", "host:0", "http://host:1/path"])
def test_a_bad_endpoint_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        EtcdSettings((endpoint,)).targets()


def test_tls_is_asked_for_by_scheme_or_authority() -> None:
    assert EtcdSettings(("https://a:1",)).tls
    assert EtcdSettings(("a:1",), ca_file="ca.pem").tls
    assert not EtcdSettings(("http://a:1",)).tls


def test_keys_lie_under_the_prefix() -> None:
    keys = Keys("/mesh")
    assert keys.lock(JOB) == f"/mesh/locks/{JOB}"
    assert keys.worker("w1") == "/mesh/workers/w1"
    assert keys.type("video.render") == "/mesh/types/video.render"


@pytest.mark.parametrize("prefix", ["mesh", "/mesh/", ""])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="slash"):
        Keys(prefix)


def test_the_owner_of_a_lock_may_have_slashes_in_its_name() -> None:
    assert LockOwner.parse(b"host/7/3") == LockOwner("host/7", 3)
    assert LockOwner.parse(b"strange") == LockOwner("", 0)


def test_a_prefix_ends_before_its_successor() -> None:
    assert prefix_end(b"/a/") == b"/a0"
    assert prefix_end(b"a\xff") == b"b"
