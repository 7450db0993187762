"""The etcd adapter: our own stubs over grpc.aio (docs/adr/0002-etcd-client.md says why).

`client` speaks the wire contract and fails over between endpoints; `session` keeps a lease alive;
`locks`, `places`, `registry` (with `watch`) and `compactor` are built on those two.
"""

from services.mesh.lease.etcd.client import EtcdClient
from services.mesh.lease.etcd.compactor import Compactor
from services.mesh.lease.etcd.endpoint import EtcdSettings
from services.mesh.lease.etcd.locks import EtcdLockTable, JobLocks
from services.mesh.lease.etcd.places import EtcdPlaces
from services.mesh.lease.etcd.registry import EtcdRegistry
from services.mesh.lease.etcd.session import LeaseSession

__all__ = [
    "Compactor",
    "EtcdClient",
    "EtcdLockTable",
    "EtcdPlaces",
    "EtcdRegistry",
    "EtcdSettings",
    "JobLocks",
    "LeaseSession",
]
