"""Objects: inputs and outputs too large to travel in the row.

Small payloads never come here: an object costs a thousand times an inline byte string. One store
per bucket; the row links to the objects, and an object nobody links to is garbage.

Keys are written once
    An output has a key of its own per attempt (`…/{job}/{fence}/…`), so a zombie makes garbage and
    never overwrites. `write_once` makes the store itself refuse a second write. If the first
    write's answer was lost and the retry is refused, the stored object is compared with ours: the
    same bytes are a success, other bytes are AlreadyExists.

Checksums end to end
    Every write returns an ObjectRef with size and SHA-256 of what was sent; the request is signed
    over its content, so the store refuses what was damaged on the way. A read that is given the
    recorded SHA-256 verifies it and raises ObjectCorrupt at the end: do not act on a stream's bytes
    before it has ended well.

Memory is bounded
    Streams go in parts of 8 MiB, one in memory while another is sent; an upload that fails or is
    cancelled is aborted. A read that breaks off goes on where it stopped, at the same version.

Failures
    ObjectNotFound and ObjectCorrupt are about the object, and final. Everything else that goes
    wrong between us and the store is DependencyUnavailable, after a few tries within seconds.

boto3 runs in a bounded pool of threads, and is imported when the first call is made (it takes half
a second). `port` has the protocol, `keys` the names, `s3` the adapter, `memory` one for tests.
"""

from services.mesh.blob.keys import input_key, output_key
from services.mesh.blob.port import BlobStore, Listed, PresignedUpload, StoredObject

__all__ = ["BlobStore", "Listed", "PresignedUpload", "StoredObject", "input_key", "output_key"]
