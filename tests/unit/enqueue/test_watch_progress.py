"""Whatever is lost, repeated or reordered on the way in: each version goes out once, in order."""

from hypothesis import given
from hypothesis import strategies as st

from services.enqueue.domain.watching import Progress, Step

LAST = 8


def offer_all(progress: Progress, versions, delivered):
    for version in versions:
        if progress.offer("j", version, version == LAST) is Step.DELIVER:
            delivered.append(version)


@given(st.integers(0, LAST - 1), st.lists(st.integers(1, LAST), max_size=40))
def test_hints_in_any_order_with_repairs_deliver_each_version_once(start, hints):
    progress, delivered = Progress({"j": start}), []
    for hint in hints:
        offer_all(progress, [hint], delivered)
        for after in progress.missing().values():
            offer_all(progress, range(after + 1, hint + 1), delivered)
    offer_all(progress, range(1, LAST + 1), delivered)
    assert delivered == list(range(start + 1, LAST + 1))
    assert progress.done


def test_a_version_ahead_shows_the_gap_and_where_to_read():
    progress = Progress({"j": 3})
    assert progress.offer("j", 6, False) is Step.GAP
    assert progress.missing() == {"j": 3}


def test_a_closed_gap_is_forgotten():
    progress = Progress({"j": 3})
    progress.offer("j", 5, False)
    progress.offer("j", 4, False)
    assert progress.missing() == {}


def test_a_gap_that_closed_in_part_is_still_read():
    progress = Progress({"j": 3})
    progress.offer("j", 7, False)
    progress.offer("j", 4, False)
    assert progress.missing() == {"j": 4}
    progress.offer("j", 6, False)
    assert progress.missing() == {"j": 4}


def test_nothing_follows_the_terminal_version():
    progress = Progress({"j": 3})
    assert progress.offer("j", 4, True) is Step.DELIVER
    assert progress.done
    assert progress.offer("j", 5, False) is Step.OLD


def test_a_terminal_snapshot_ends_the_watch():
    progress = Progress({"j": 0})
    progress.snapshot("j", 4, True)
    assert progress.done


def test_events_of_other_jobs_are_old_news():
    assert Progress({"j": 0}).offer("k", 1, False) is Step.OLD
