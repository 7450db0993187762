"""Which objects of attempts nobody refers to, nor ever can. Pure."""

from __future__ import annotations

from services.mesh.blob.keys import OUTPUT_NAME, read_output_key
from services.mesh.store.answers import OutputReference


def is_orphan(key: str, job: OutputReference | None) -> bool:
    """Whether an object of the output store can go; `job` is None if it does not exist.

    An object that is not named as ours are stays. Of a job that exists everything stays but outputs
    that did not become its output: those of an attempt that was superseded, or whose job has ended
    otherwise. The newest attempt of a job that has not ended may still commit.
    """
    parts = read_output_key(key)
    if parts is None:
        return False
    if job is None:
        return True
    if parts.name != OUTPUT_NAME or job.key == key:
        return False
    return job.ended or parts.fence < job.fence
