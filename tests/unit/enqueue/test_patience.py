"""Waiting for callers who come back, and not for those who do not."""

from services.enqueue.domain.patience import FIRST_REST, MOST_REST, Patience


def batches_until_patient(patience: Patience) -> int:
    """How many batches go soon before one waits long again; that one is in vain, too."""
    soon = 0
    while patience.seconds(0.01) < 0.01:
        patience.went(10, 64)
        soon += 1
    patience.went(10, 64)
    return soon


def test_callers_that_come_back_are_waited_for_each_time():
    patience = Patience()
    for _ in range(100):
        assert patience.seconds(0.01) == 0.05
        patience.went(64, 64)


def test_nobody_is_waited_for_longer_than_people_notice():
    assert Patience().seconds(1.0) == 0.1


def test_one_that_stays_away_is_no_reason_to_give_up():
    patience = Patience()
    patience.went(60, 64)
    assert patience.seconds(0.01) == 0.05


def test_where_nobody_comes_back_batches_go_soon():
    patience = Patience()
    patience.went(10, 64)
    assert patience.seconds(0.01) == 0.005


def test_waiting_is_tried_again_and_less_and_less_often():
    patience = Patience()
    patience.went(10, 64)
    rests = [batches_until_patient(patience) for _ in range(6)]
    assert rests == [FIRST_REST, 8, 16, 32, MOST_REST, MOST_REST]


def test_callers_that_came_back_after_all_are_waited_for_again():
    patience = Patience()
    for _ in range(5):
        patience.went(10, 64)
    assert patience.seconds(0.01) == 0.05
    patience.went(64, 64)
    patience.went(10, 64)
    assert batches_until_patient(patience) == FIRST_REST
