"""Settings of types: as the wire and etcd have them, and as services use them."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from jobmesh.v1 import job_pb2, retry_pb2, type_settings_pb2

from services.mesh.jobs.type_settings import Retention, TypeSettings
from services.mesh.lease.port import Entry
from services.mesh.wire.retries import retry_from_proto, timeouts_from_proto
from services.mesh.wire.values import optional_timedelta

#: The bounds of time that a type may give its jobs.
BOUNDS = tuple(field.name for field in job_pb2.Timeouts.DESCRIPTOR.fields)

#: What is not the operator's to say.
ASKED = ("handler_retry_policy", "handler_run_timeout")


def type_settings_from_entry(entry: Entry) -> TypeSettings:
    """What a key of etcd says; ValueError if it is something else."""
    return type_settings_from_proto(settings_message(entry))


def settings_message(entry: Entry) -> type_settings_pb2.TypeSettings:
    """The message as it was set, with its etag."""
    try:
        message = type_settings_pb2.TypeSettings.FromString(entry.value)
    except DecodeError as error:
        raise ValueError(f"not the settings of a type: {error}") from error
    message.type = entry.key.rpartition("/")[2]
    message.etag = str(entry.revision)
    return message


def type_settings_from_proto(message: type_settings_pb2.TypeSettings) -> TypeSettings:
    said, kept = default_retry(message), message.retention
    return TypeSettings(
        type=message.type,
        retry=None if said is None else retry_from_proto(said),
        timeouts=timeouts_from_proto(job_pb2.JobSpec(timeouts=message.timeouts)),
        max_running=message.max_running,
        max_running_per_key=message.max_running_per_key,
        retention=Retention(
            succeeded=optional_timedelta(kept, "succeeded"),
            failed=optional_timedelta(kept, "failed"),
            cancelled=optional_timedelta(kept, "cancelled"),
            expired=optional_timedelta(kept, "expired"),
        ),
    )


def settings_value(
    given: type_settings_pb2.TypeSettings, asked: type_settings_pb2.TypeSettings
) -> bytes:
    """What a key of etcd is to hold: all that was given, with what the handler asks for. The type
    and the etag are the key's own.
    """
    message = type_settings_pb2.TypeSettings()
    message.CopyFrom(given)
    for field in ("type", "etag", *ASKED):
        message.ClearField(field)  # type: ignore[arg-type]
    message.MergeFrom(asked_by_handler(asked))
    return message.SerializeToString(deterministic=True)


def asked_by_handler(message: type_settings_pb2.TypeSettings) -> type_settings_pb2.TypeSettings:
    """The handler's word, and nothing else."""
    asked = type_settings_pb2.TypeSettings()
    for field in ASKED:
        if message.HasField(field):  # type: ignore[arg-type]
            getattr(asked, field).CopyFrom(getattr(message, field))
    return asked


def default_retry(message: type_settings_pb2.TypeSettings) -> retry_pb2.RetryPolicy | None:
    """The operator's word, else the handler's."""
    if message.HasField("retry_policy"):
        return message.retry_policy
    return message.handler_retry_policy if message.HasField("handler_retry_policy") else None


def fill_defaults(spec: job_pb2.JobSpec, settings: type_settings_pb2.TypeSettings) -> None:
    """What a submitted job does not say itself; each bound of time by itself."""
    if not spec.HasField("retry_policy") and (said := default_retry(settings)) is not None:
        spec.retry_policy.CopyFrom(said)
    if settings.HasField("timeouts"):
        for bound in BOUNDS:
            if settings.timeouts.HasField(bound) and not spec.timeouts.HasField(bound):  # type: ignore[arg-type]
                getattr(spec.timeouts, bound).CopyFrom(getattr(settings.timeouts, bound))
