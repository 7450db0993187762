"""What the nemesis does to etcd, on a real one."""

from __future__ import annotations

from tests.chaos.etcd import EtcdGateway


def test_leases_that_end_by_themselves_meanwhile_do_not_keep_the_others(
    etcd_endpoint: str, monkeypatch
) -> None:
    gateway = EtcdGateway(int(etcd_endpoint.rpartition(":")[2]))
    granted = [gateway._call("lease/grant", TTL=60)["ID"] for _ in range(3)]
    listed = {"leases": [{"ID": lease_id} for lease_id in granted]}
    gateway._call("lease/revoke", ID=granted[0])
    call = gateway._call

    def late(path: str, **fields: object) -> dict[str, object]:
        return listed if path == "lease/leases" else call(path, **fields)

    monkeypatch.setattr(gateway, "_call", late)
    assert gateway.revoke_all() == 2
