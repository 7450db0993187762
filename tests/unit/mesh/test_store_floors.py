"""When a keeper looks at everything, and when it raises the floors."""

from __future__ import annotations

from services.mesh.store.floors import FloorPace, FloorRules


def test_quick_looks_are_all_at_everything():
    pace = FloorPace(FloorRules())
    assert pace.everything(0.0)
    pace.looked(1.0, 0.01)
    assert pace.everything(1.0)


def test_a_slow_one_is_followed_by_many_that_begin_at_the_floors():
    pace = FloorPace(FloorRules(factor=300.0, most=60.0))
    pace.looked(1.0, 0.1)
    assert not pace.everything(30.9)
    assert pace.everything(31.0)
    pace.looked(31.0, 2.0)
    assert not pace.everything(90.9)
    assert pace.everything(91.0), "at most a minute"


def test_one_that_does_not_come_to_its_end_is_not_repeated_at_once():
    pace = FloorPace(FloorRules(factor=300.0, most=60.0))
    pace.looking(1.0)
    assert not pace.everything(60.9)
    assert pace.everything(61.0)
    pace.looking(61.0)
    pace.looked(61.0, 0.01)
    assert pace.everything(61.0), "it did, and was quick"


def test_what_could_not_be_said_is_looked_for_again():
    pace = FloorPace(FloorRules())
    pace.looked(1.0, 2.0)
    pace.again()
    assert pace.everything(1.0)


def test_floors_are_raised_where_much_is_dead_and_now_and_then():
    pace = FloorPace(FloorRules(dead=1000, apart=5.0))
    assert not pace.raises(1.0, 999)
    assert pace.raises(1.0, 1000)
    assert not pace.raises(5.9, 10**6)
    assert pace.raises(6.0, 10**6)
