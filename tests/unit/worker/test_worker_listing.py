"""What people are shown of the attempts in hand."""

from __future__ import annotations

from uuid import UUID

from services.worker.convert import running_to_proto
from services.worker.domain.attempt import Attempt


def test_an_attempt_that_waits_for_room_has_not_started() -> None:
    job_id = UUID(int=1)
    waiting = Attempt(job_id.bytes, 1, "echo", "default", 1)
    running = Attempt(job_id.bytes, 2, "echo", "default", 1, start_us=1_500_000)
    shown = running_to_proto([waiting, running])
    assert [one.HasField("start_time") for one in shown] == [False, True]
    assert shown[1].start_time.ToMilliseconds() == 1500
