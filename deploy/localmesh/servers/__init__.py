"""Real servers for a local mesh, from PyPI wheels: Postgres, NATS, etcd and an S3 store.

A `Server` describes one process: its data folder, its ports, how to start it, and how to ask
whether it does real work (a query, a health answer, a stored object; never just an open port).
`start_servers` brings several up in parallel and returns when all are ready, or stops those it
started and raises one `LocalError`.

Every server is durable as it would be in production (fsync on), listens on the loopback only, keeps
its files in the folder it was given, and does next to nothing at rest.
"""

from localmesh.launch import Running
from localmesh.launch import start_units as start_servers
from localmesh.launch import stop_units as stop_servers
from localmesh.servers.etcd import Etcd
from localmesh.servers.nats import Nats
from localmesh.servers.postgres import Postgres
from localmesh.servers.s3 import S3
from localmesh.servers.server import Server

__all__ = ["S3", "Etcd", "Nats", "Postgres", "Running", "Server", "start_servers", "stop_servers"]
