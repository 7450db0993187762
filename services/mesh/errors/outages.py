"""Not the request's fault: something is away, has no room, is broken or not there yet."""
# ruff: noqa: N818 - the names are the reasons of the contract; an "Error" suffix would blur that.

from __future__ import annotations

from typing import Self

from services.mesh.errors.base import Code, MeshError


class Unavailable(MeshError):
    code = Code.UNAVAILABLE
    waits = 1.0


class StaleEpoch(Unavailable):
    """The bucket map moved on while the call was under way; `epoch` is the newer one."""

    reason = "STALE_EPOCH"
    waits = 0.05

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the bucket map is now at epoch {epoch}", metadata={"epoch": str(epoch)})


class ShardUnavailable(Unavailable):
    reason = "SHARD_UNAVAILABLE"

    def __init__(self, shard: str, retry_after: float | None = None, why: str = "is away") -> None:
        metadata = {"shard": shard}
        super().__init__(f"shard {shard} {why}", metadata=metadata, retry_after=retry_after)


class ShardBusy(ShardUnavailable):
    """The shard answered, so it lives: it gave this one statement up, and nothing was changed.

    To callers that is the same as one that is away. Who decides whether it is away knows better.
    """


class OutcomeUnknown(Unavailable):
    """The write may have been committed. Only a retry with the same idempotency key is safe."""

    reason = "OUTCOME_UNKNOWN"

    def __init__(self, shard: str) -> None:
        text = (
            f"shard {shard} did not say whether it committed; retry with the same idempotency key"
        )
        super().__init__(text, metadata={"shard": shard})

    @classmethod
    def by_defect(cls, correlation_id: str) -> Self:
        """A defect of ours struck on the way to the shards, or back; the log has it by the id."""
        error = cls("unknown")
        error.message = (
            "a defect of the service left open whether it was committed; retry with the same "
            f"idempotency key, and see the service's log for {correlation_id}"
        )
        error.args = (error.message,)
        error.metadata["correlation_id"] = correlation_id
        return error

    @property
    def retryable(self) -> bool:
        """Not by itself: a retry without an idempotency key may create a twin."""
        return False


class NoHealthyShard(Unavailable):
    reason = "NO_HEALTHY_SHARD"
    says = "no shard can take new jobs now"


class DependencyUnavailable(Unavailable):
    """Something this service depends on is away: `DependencyUnavailable("nats")`."""

    reason = "DEPENDENCY_UNAVAILABLE"

    def __init__(self, dependency: str, message: str = "") -> None:
        super().__init__(message or f"{dependency} is away", metadata={"dependency": dependency})


class Draining(Unavailable):
    reason = "DRAINING"
    says = "this process is shutting down; another replica will answer"
    waits = 0.05


class ResourceExhausted(MeshError):
    code = Code.RESOURCE_EXHAUSTED
    waits = 1.0


class Overloaded(ResourceExhausted):
    reason = "OVERLOADED"
    says = "too much work in flight"


class QuotaExceeded(ResourceExhausted):
    reason, kind, key = "QUOTA_EXCEEDED", "namespace", "namespace"

    def __init__(self, namespace: str, quota: str, retry_after: float | None = None) -> None:
        text = f"namespace {namespace!r} is over its quota of {quota}"
        metadata = {"namespace": namespace, "quota": quota}
        super().__init__(text, metadata=metadata, retry_after=retry_after)


class SlowConsumer(ResourceExhausted):
    reason = "SLOW_CONSUMER"
    says = "the watcher read too slowly; resume with the last token it received"
    waits = 0.1


class DataLoss(MeshError):
    code = Code.DATA_LOSS


class ObjectCorrupt(DataLoss):
    reason, kind, key = "OBJECT_CORRUPT", "object", "key"

    def __init__(self, key: str) -> None:
        text = f"the checksum of object {key!r} differs from the recorded one"
        super().__init__(text, metadata={"key": key})


class DeadlineExceeded(MeshError):
    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"
    says = "the deadline passed before the answer was there"


class NotImplementedYet(MeshError):
    """Part of the contract this version does not fill: `NotImplementedYet("BackfillSchedule")`."""

    code = Code.UNIMPLEMENTED
    reason = "NOT_IMPLEMENTED"

    def __init__(self, feature: str) -> None:
        text = f"{feature} is not implemented in this version"
        super().__init__(text, metadata={"feature": feature})


class InternalError(MeshError):
    """A defect of ours. What the caller sees is only an id; the log has the rest."""

    code = Code.INTERNAL
    reason = "INTERNAL"

    def __init__(self, correlation_id: str) -> None:
        text = f"internal error, see the service's log for {correlation_id}"
        super().__init__(text, metadata={"correlation_id": correlation_id})
