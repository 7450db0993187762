"""What a backlog leaves to live work."""

from __future__ import annotations

from services.scheduler.domain.shares import Share, ShareRules


def test_a_type_that_is_not_behind_looks_at_everything() -> None:
    share = Share(ShareRules())
    for waited, full in ((0.0, True), (3600.0, False), (9.0, True)):
        share.ended(waited, full=full)
        assert [share.next() for _ in range(8)] == [None] * 8


def test_of_a_type_that_is_behind_every_fourth_claim_is_for_live_work() -> None:
    share = Share(ShareRules(lately=10, one_in=4))
    share.ended(11.0, full=True)
    assert [share.next() for _ in range(8)] == [None, None, None, 10.0] * 2
    share.ended(11.0, full=False)
    assert [share.next() for _ in range(8)] == [None] * 8
