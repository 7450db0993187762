"""A batch of the largest size still fits into one call when it has grown on its way."""

from jobmesh.v1 import enqueue_service_pb2 as pb
from jobmesh.v1 import job_pb2, orchestrator_service_pb2, retry_pb2, type_settings_pb2

from services.enqueue import convert
from services.enqueue.servicer.chains import _tied
from services.mesh.rpc.server import MAX_PUT_BYTES, MAX_RECEIVE_BYTES
from services.mesh.wire.type_settings import fill_defaults

JOBS = 1000
NAMESPACE = "n" * 63
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
JOB_ID = "018f0e2e-7e0a-7aaa-8000-000000000000"
#: What a type gives jobs that say nothing: far more than anybody writes.
DEFAULTS = type_settings_pb2.TypeSettings(
    retry_policy=retry_pb2.RetryPolicy(
        backoff=retry_pb2.BACKOFF_LIST,
        max_attempts=1000,
        non_retryable_types=["E" * 40] * 50,
        retryable_types=["E" * 40] * 50,
        non_retryable_exit_codes=[255] * 50,
        retryable_exit_codes=[255] * 50,
    )
)
for delay in [DEFAULTS.retry_policy.delays.add() for _ in range(100)] + [
    getattr(DEFAULTS.timeouts, bound.name) for bound in job_pb2.Timeouts.DESCRIPTOR.fields
]:
    delay.FromMicroseconds(2_591_999_999_999)


def growth(item: pb.EnqueueItem) -> int:
    """What an item gains from the caller's message to the Orchestrator's."""
    sent = pb.EnqueueBatchRequest(items=[item])
    put = orchestrator_service_pb2.PutJobsRequest()
    tied = _tied(item, {parent.item: JOB_ID for parent in item.item_dependencies})
    convert.fill_new_job(put.jobs.add(), NAMESPACE, tied.job, tied.idempotency_key, TRACE)
    fill_defaults(put.jobs[0].spec, DEFAULTS)
    return put.ByteSize() - sent.ByteSize()


def test_the_largest_batch_fits_into_one_call_whatever_is_added_to_its_jobs() -> None:
    item = pb.EnqueueItem(job=job_pb2.JobSpec(type="t"), idempotency_key="k")
    for number in range(100):
        item.item_dependencies.add(item=number, on_failure=job_pb2.PARENT_FAILURE_POLICY_FAIL)
    assert growth(item) > 8000, "all of it is there"
    assert MAX_RECEIVE_BYTES + JOBS * growth(item) < MAX_PUT_BYTES
