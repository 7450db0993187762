"""Cron: the wall times an expression names, and which instants they are on the odd nights."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from random import Random
from zoneinfo import ZoneInfo, available_timezones

import pytest

from services.mesh.jobs.cron import Cron, DstGap, DstOverlap, check_expression
from services.mesh.jobs.recurrence import (
    LONGEST_SEARCH,
    AnyOf,
    CatchUp,
    CatchUpPolicy,
    Interval,
    plan_firing,
    recurrence_from_json,
    recurrence_to_json,
)
from services.mesh.jobs.zones import stretch_at, zone

TICK, SECOND = timedelta(microseconds=1), timedelta(seconds=1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BERLIN = ZoneInfo("Europe/Berlin")


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


def walls(rule: Cron, start: datetime, count: int) -> list[str]:
    """The next nominal times, as clocks in the rule's zone show them."""
    found = islice(AnyOf((rule,)).between(start, start + 4000 * DAY), count)
    place = ZoneInfo(rule.time_zone)
    return [time.astimezone(place).strftime("%m-%d %H:%M:%S%z") for time in found]


# --- expressions


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 9 * * *", ["06-01 09:30:00", "06-02 09:30:00"]),
        ("15 30 9 * * *", ["06-01 09:30:15", "06-02 09:30:15"]),
        ("0 9 * * MON", ["06-01 09:00:00", "06-08 09:00:00"]),
        ("0 0 L * *", ["06-30 00:00:00", "07-31 00:00:00"]),
        ("0 0 * * FRI#2", ["06-12 00:00:00", "07-10 00:00:00"]),
        ("@hourly", ["06-01 00:00:00", "06-01 01:00:00"]),
        ("@daily", ["06-01 00:00:00", "06-02 00:00:00"]),
        ("@weekly", ["06-07 00:00:00", "06-14 00:00:00"]),
        ("@monthly", ["06-01 00:00:00", "07-01 00:00:00"]),
        ("@YEARLY", ["01-01 00:00:00", "01-01 00:00:00"]),
    ],
)
def test_an_expression_names_its_wall_times(expression, expected):
    check_expression(expression)
    found = walls(Cron(expression), utc(2026, 6, 1), 2)
    assert [text.removesuffix("+0000") for text in found] == expected


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 2,4,6 *", "never fires"),
        ("61 * * * *", "bad minute"),
        ("* * * * MON#6", "bad day-of-week"),
        ("* * * 13 *", "bad month"),
        ("0 0 31 13 *", "bad month"),
        ("* * *", "five fields"),
        ("", "five fields"),
        ("* * * * * * *", "five fields"),
        ("@reboot", "no alias"),
    ],
)
def test_an_expression_that_says_nothing_is_refused_with_the_reason(expression, reason):
    with pytest.raises(ValueError, match=reason):
        check_expression(expression)


@pytest.mark.parametrize("name", ["Mars/Base", "America", "../etc/passwd", "right/UTC", "", "a\0b"])
def test_an_unknown_zone_is_refused(name):
    with pytest.raises(ValueError, match="no time zone"):
        zone(name)


def test_a_misspelt_zone_is_answered_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"did you mean Europe/Berlin\?"):
        zone("europe/berln")


# --- the odd nights, one by one: Berlin leaves 02:00-03:00 out on 2027-03-28

SPRING, AUTUMN = utc(2027, 3, 27, 12), utc(2026, 10, 24, 12)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (DstGap.SKIP, "03-29 02:30:00+0200"),
        (DstGap.RUN_AT_SHIFT, "03-28 03:00:00+0200"),
        (DstGap.RUN_BEFORE, "03-28 01:59:59+0100"),
    ],
)
def test_a_time_that_is_left_out_follows_the_gap_policy(gap, expected):
    assert walls(Cron("30 2 * * *", "Europe/Berlin", gap), SPRING, 1) == [expected]


def test_times_that_fall_together_are_one():
    rule = Cron("*/15 2,3 * * *", "Europe/Berlin", DstGap.RUN_AT_SHIFT)
    assert walls(rule, SPRING, 2) == ["03-28 03:00:00+0200", "03-28 03:15:00+0200"]


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (DstOverlap.ONCE, ["10-25 02:30:00+0200", "10-26 02:30:00+0100"]),
        (DstOverlap.TWICE, ["10-25 02:30:00+0200", "10-25 02:30:00+0100"]),
    ],
)
def test_a_time_that_comes_twice_follows_the_overlap_policy(overlap, expected):
    assert walls(Cron("30 2 * * *", "Europe/Berlin", overlap=overlap), AUTUMN, 2) == expected


def test_a_day_that_a_place_left_out_is_left_out():
    rule = Cron("0 12 * * *", "Pacific/Apia", DstGap.SKIP)  # Samoa had no 30 December 2011
    assert [text[:5] for text in walls(rule, utc(2011, 12, 29, 12), 3)] == [
        "12-29",
        "12-31",
        "01-01",
    ]


# --- the odd nights, all of them, against a calendar of our own

FIRST, LAST = utc(2024, 1, 1), utc(2035, 1, 1)
#: Each expression with what it says in other words: minutes, hours, days.
POOL: tuple[tuple[set[int], set[int], Callable[[datetime], bool], str], ...] = (
    ({0, 30}, set(range(24)), bool, "*/30 * * * *"),
    ({30}, {0, 1, 2, 3}, bool, "30 0-3 * * *"),
    ({15, 45}, {1, 2, 23}, bool, "15,45 1,2,23 * * *"),
    ({0}, set(range(24)), bool, "0 * * * *"),
    ({59}, {0, 23, 1, 2}, bool, "59 0,1,2,23 * * *"),
    ({10, 40}, set(range(24)), lambda wall: wall.weekday() == 6, "10,40 * * * SUN"),
    ({20}, set(range(24)), lambda wall: wall.month in (3, 10, 11), "20 * * 3,10,11 *"),
    ({5, 35}, {0, 1, 2, 3}, lambda wall: wall.day % 2 == 1, "5,35 0-3 */2 * *"),
)
#: One of them for each night; `HYPOTHESIS=explore` tries all of them on every one.
EXPRESSIONS_A_NIGHT = len(POOL) if os.environ.get("HYPOTHESIS") == "explore" else 1


def changes_of(name: str) -> tuple[datetime, ...]:
    """Every change of a zone's clocks, found by walking through days, hours, minutes."""
    place = ZoneInfo(name)

    def walk(start: datetime, end: datetime, steps: tuple[timedelta, ...]) -> list[datetime]:
        if not steps:
            return [end]
        found: list[datetime] = []
        time, offset = start, start.astimezone(place).utcoffset()
        while time < end:
            following = time + steps[0]
            then = following.astimezone(place).utcoffset()
            if then != offset:
                found += walk(time, following, steps[1:])
            time, offset = following, then
        return found

    return tuple(walk(FIRST, LAST, (DAY, HOUR, MINUTE)))


@pytest.fixture(scope="module")
def changes() -> dict[str, tuple[datetime, ...]]:
    places = available_timezones() - {"localtime"}
    return {name: changes_of(name) for name in sorted(places)}


@pytest.mark.timeout(300)
def test_all_changes_of_all_zones_are_known(changes):
    assert len(changes) > 400
    for name, expected in changes.items():
        found, time = [], FIRST
        while time < LAST:
            stretch = stretch_at(name, time)
            if stretch.after != stretch.offset:
                found.append(stretch.end)
            time = stretch.end
        assert tuple(found) == expected, name


class Calendar:
    """What a person with a table of minutes would say. No cron, no offsets."""

    def __init__(self, place: ZoneInfo, start: datetime, end: datetime) -> None:
        self.start, self.end = start, end
        self.shown: dict[datetime, list[datetime]] = {}
        clock = start - 3 * HOUR
        while clock < end + 3 * HOUR:
            wall = clock.astimezone(place).replace(tzinfo=None, fold=0)
            self.shown.setdefault(wall, []).append(clock)
            clock += MINUTE

    def times(
        self, minutes: set[int], hours: set[int], on: Callable[[datetime], bool], rule: Cron
    ) -> list[datetime]:
        named: set[datetime] = set()
        wall, last = min(self.shown), max(self.shown)
        newest = wall  # that a clock showed
        while wall <= last:
            newest = wall if wall in self.shown else newest
            if wall.minute in minutes and wall.hour in hours and on(wall):
                named.update(self._instants(wall, self.shown[newest][-1] + MINUTE, rule))
            wall += MINUTE
        return sorted(time for time in named if self.start <= time < self.end)

    def _instants(self, wall: datetime, shift: datetime, rule: Cron) -> list[datetime]:
        if wall in self.shown:
            both = self.shown[wall]
            return both if rule.overlap is DstOverlap.TWICE else both[:1]
        moved = {DstGap.RUN_AT_SHIFT: [shift], DstGap.RUN_BEFORE: [shift - SECOND]}
        return moved.get(rule.gap, [])


@pytest.mark.timeout(
    900
)  # all zones: seconds of work, minutes on a busy machine or with all expressions
def test_every_odd_night_of_every_zone_matches_the_calendar(changes):
    """Zones that change alike are one: what differs is the moment and the offsets."""
    random = Random(20_240_101)
    nights = {}
    for name, moments in changes.items():
        for moment in moments:
            around = [
                moment.astimezone(ZoneInfo(name)).utcoffset()
                for moment in (moment - SECOND, moment)
            ]
            nights.setdefault((moment, *around), name)
    assert len(nights) > 300
    policies = list(product(list(DstGap)[1:], list(DstOverlap)[1:]))
    for (moment, *_), name in nights.items():
        start, end = moment - 4 * HOUR, moment + 4 * HOUR
        model = Calendar(ZoneInfo(name), start, end)
        chosen = random.sample(POOL, EXPRESSIONS_A_NIGHT)
        for (minutes, hours, on, expression), (gap, overlap) in product(chosen, policies):
            rule = Cron(expression, name, gap, overlap)
            expected = model.times(minutes, hours, on, rule)
            forward = list(AnyOf((rule,)).between(start, end - TICK))
            assert forward == expected, (rule, moment)
            assert all(rule.names(time) for time in expected)
            backward, time = [], rule.latest_until(end - TICK)
            while time is not None and time >= start:
                backward.append(time)
                time = rule.latest_until(time - TICK)
            assert backward[::-1] == expected, (rule, moment)


# --- several rules, exclusions, firing


def test_exclusions_leave_times_out():
    workdays = AnyOf((Cron("0 9 * * MON-FRI"),), (Cron("* * 25,26 12 *"),))
    found = workdays.between(utc(2026, 12, 24), utc(2026, 12, 29))
    assert [time.day for time in found] == [24, 28]
    assert workdays.latest_until(utc(2026, 12, 27)).day == 24


def test_several_rules_name_each_time_once():
    both = AnyOf((Cron("0 * * * *"), Interval(30 * MINUTE)))
    assert len(list(both.between(utc(2026, 1, 1), utc(2026, 1, 1, 2)))) == 5


def test_a_long_search_rests_and_goes_on_from_there():
    halves = (Cron("*/2 * * * JAN *"), Cron("1-59/2 * * * JAN *"))  # neither reaches far alone
    rule = AnyOf((Interval(SECOND),), halves)
    rest = rule.next_after(utc(2026, 1, 1))
    assert not rule.names(rest)
    firing = plan_firing(rule, CatchUpPolicy(), rest, rest + SECOND)
    assert (firing.nominal_times, firing.missed) == ((), 0)
    assert firing.next_time >= rest + LONGEST_SEARCH * SECOND


@pytest.mark.parametrize("mode", [CatchUp.SKIP, CatchUp.LAST, CatchUp.ALL])
def test_cron_on_time_runs_once(mode):
    rule, noon = AnyOf((Cron("0 12 * * *"),)), utc(2026, 6, 1, 12)
    firing = plan_firing(rule, CatchUpPolicy(mode), noon, noon + SECOND)
    assert (firing.nominal_times, firing.next_time, firing.missed) == ((noon,), noon + DAY, 0)


def test_cron_catches_up_with_all_in_bounded_steps():
    rule, noon = AnyOf((Cron("* * * * *"),)), utc(2026, 6, 1, 12)
    policy = CatchUpPolicy(CatchUp.ALL, timedelta(days=30))
    next_time, made, missed = noon, [], 0
    while next_time <= noon + DAY:
        firing = plan_firing(rule, policy, next_time, noon + DAY)
        made += firing.nominal_times
        missed, next_time = missed + firing.missed, firing.next_time
    assert made == [noon + DAY - n * MINUTE for n in range(999, -1, -1)]
    assert missed == 441


def test_rules_read_back_from_json():
    rule = Cron("0 9 * * *", "Asia/Tokyo", DstGap.SKIP, DstOverlap.TWICE)
    assert recurrence_from_json(recurrence_to_json(rule)) == rule
