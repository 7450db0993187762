"""What schedulers are nudged about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from services.orchestrator.domain.dueness import Soon, due_work

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_work_is_due_now_or_soon_or_of_no_interest_yet() -> None:
    jobs = [
        ("now", NOW, NOW),
        ("past", NOW - SECOND, NOW),
        ("old", NOW - 6 * SECOND, NOW),
        ("soon", NOW + 3 * SECOND, NOW),
        ("many", NOW + 3 * SECOND, NOW),
        ("many", NOW + 2 * SECOND, NOW),
        ("both", NOW, NOW),
        ("both", NOW + SECOND, NOW),
        ("later", NOW + 60 * SECOND, NOW),
        ("ended", None, NOW),
    ]
    work = due_work(jobs)
    assert work.now == {"now", "past", "old", "both"}
    assert work.long == {"old"}
    assert work.soon == {
        "soon": Soon(NOW + 3 * SECOND),
        "many": Soon(NOW + 2 * SECOND, more=True),
        "both": Soon(NOW + SECOND),
    }
    assert not due_work([("later", NOW + 60 * SECOND, NOW)])
