"""What schedulers are nudged about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from services.orchestrator.domain.dueness import Soon, due_work

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_work_is_due_now_or_soon_or_of_no_interest_yet() -> None:
    jobs = [
        ("now", NOW, NOW),
        ("past", NOW - SECOND / 4, NOW),
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


def test_what_took_long_to_be_stored_has_been_due_for_long_when_it_is_seen() -> None:
    jobs = [("now", NOW, NOW), ("meanwhile", NOW + SECOND, NOW), ("soon", NOW + 3 * SECOND, NOW)]
    assert not due_work(jobs, 0.25).long
    work = due_work(jobs, 2.0)
    assert work.now == work.long == {"now", "meanwhile"}
    assert work.soon == {"soon": Soon(NOW + 3 * SECOND)}


def test_a_slow_call_does_not_make_due_what_is_due_in_a_moment() -> None:
    """Some of what it took went by before the shard looked at its clock."""
    work = due_work([("soon", NOW + SECOND / 10, NOW)], 0.4)
    assert not work.now
    assert set(work.soon) == {"soon"}
