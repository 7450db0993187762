"""Clients of the mesh's public face, EnqueueService.

`AsyncClient` is the one implementation; `Client` runs it in a thread of its own for code without an
event loop. What both promise:

- Every call has a deadline, and none is repeated unless repeating is safe: reads, calls the
  contract declares idempotent, and submissions with an idempotency key. A submission without one is
  given a random key, so a lost answer never makes a second job.
- A watch ends only when the jobs do: it resumes by itself where it was cut, and nothing is seen
  twice.
- What is larger than the inline limit, and every `pathlib.Path`, is uploaded first and referred to.
- Errors are those of `jobmesh.errors`, with the reason, the bad fields and the way out.

The parts: `caller` (channel, deadlines, retries), `status` (errors from the wire), `submission`,
`bulk` and `stream` (what may be sent again, batches, many of them over one call), `watch` (resume),
`transfer` (bytes up and down), `convert` (messages to values and back), `operators` (pools and
shards, for the command line).
"""

from jobmesh.client.aio import AsyncClient, JobPage
from jobmesh.client.blocking import Client, JobHandle, shared_client
from jobmesh.client.handle import AsyncJobHandle
from jobmesh.client.schedules import AsyncSchedules
from jobmesh.client.submission import Ack, EnqueueFailed

__all__ = [
    "Ack",
    "AsyncClient",
    "AsyncJobHandle",
    "AsyncSchedules",
    "Client",
    "EnqueueFailed",
    "JobHandle",
    "JobPage",
    "shared_client",
]
