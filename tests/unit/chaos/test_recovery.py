"""Recovery samples: what belongs to which fault, and what stood beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.mesh.jobs.ids import bucket_for_key
from services.mesh.jobs.topology import BucketMap
from tests.chaos.orders import LANE, LIMITED
from tests.chaos.recovery import BREAKER, ELSEWHERE, RESUMED, SILENT, SWEPT, Measure, measure
from tests.chaos.report import recovery_table
from tests.unit.chaos.story import BEGAN, Story

#: (state, reason, fence): its first dispatch got lost, and was swept.
LOST = ((1, 1, 0), (2, 2, 1), (1, 8, 1), (2, 2, 2), (3, 3, 2), (4, 4, 2))


def _strike(story: Story, kind: str, target: str, began: float, healed: float) -> dict[str, Any]:
    number = len(story.evidence.faults)
    fault = {"number": number, "kind": kind, "target": target, "in_flight": 1, "detail": {}}
    fault |= {"began": BEGAN + began, "until": BEGAN + healed, "healed": BEGAN + healed}
    story.evidence.faults.append(fault)
    return fault


def _found(folder: Path, story: Story, name: str) -> Measure:
    return next(one for one in measure(folder, story.evidence) if one.name == name)


def test_the_only_fault_in_force_is_what_a_lost_dispatch_belongs_to(tmp_path: Path) -> None:
    story = Story()
    story.job("a", LOST)
    _strike(story, "drop.broker", "nats", 1, 5)
    (sample,) = _found(tmp_path, story, SWEPT).samples
    assert (sample.by, sample.beside, sample.seconds) == ("drop.broker nats", (), 2.0)


@pytest.mark.parametrize(
    ("share", "healed", "name", "seconds"),
    [(1.0, 3.5, SILENT, 0.5), (1.0, 2.5, SWEPT, 2.0), (0.6, 3.5, SWEPT, 2.0)],
)
def test_a_dispatch_that_is_swept_while_no_message_passes_counts_from_when_one_does(
    tmp_path: Path, share: float, healed: float, name: str, seconds: float
) -> None:
    story = Story()
    story.job("a", LOST)  # claimed at 2, swept at 3, claimed again at 4
    fault = _strike(story, "drop.broker", "nats", 1, healed)
    planned = {"number": fault["number"], "options": {"share": share}}
    story.evidence.plan["faults"] = [planned]
    (sample,) = _found(tmp_path, story, name).samples
    assert sample.seconds == pytest.approx(seconds)
    assert {one.name for one in measure(tmp_path, story.evidence)} & {SILENT, SWEPT} == {name}


def test_a_sample_says_which_other_faults_were_in_force(tmp_path: Path) -> None:
    story = Story()
    story.job("a", LOST)
    _strike(story, "drop.broker", "nats", 1, 5)
    _strike(story, "stop.shard", "shard-1", 3, 9)
    _strike(story, "kill.etcd", "etcd", 20, 30)
    found = _found(tmp_path, story, SWEPT)
    (worst,) = found.to_json()["worst"]
    assert worst["beside"] == ["drop.broker nats", "stop.shard shard-1"]
    assert found.to_json()["alone"] == 0


def test_the_worst_sample_of_a_late_line_is_told_with_what_was_beside_it(tmp_path: Path) -> None:
    story = Story()
    story.evidence.watches.append({"watcher": "w", "at": BEGAN + 14, "resumed": BEGAN + 2})
    _strike(story, "kill.enqueue", "enqueue", 2, 3)
    _strike(story, "stop.shard", "shard-1", 3, 9)
    text = recovery_table([_found(tmp_path, story, RESUMED)], BEGAN)
    assert "worst: 12.0 s, at 2.0 s, beside kill.enqueue enqueue, stop.shard shard-1" in text


def test_what_recovers_after_everything_was_killed_has_that_time(tmp_path: Path) -> None:
    story = Story()
    story.evidence.watches.append({"watcher": "w", "at": BEGAN + 22, "resumed": BEGAN + 2})
    _strike(story, "kill.all", "all", 1, 15)
    found = _found(tmp_path, story, "everything killed: resumed")
    assert (found.target, [sample.seconds for sample in found.samples]) == (30.0, [20.0])


def test_a_canary_that_never_ended_counts_as_long_as_it_was_waited_for(tmp_path: Path) -> None:
    story = Story()
    fault = _strike(story, "kill.scheduler", "scheduler", 1, 5)
    line = {"fault": fault["number"], "kind": fault["kind"], "when": "struck", "where": "any"}
    text = json.dumps({**line, "began": BEGAN + 1, "lasted": 61.0})
    (tmp_path / "canaries.jsonl").write_text(text + "\n")
    found = _found(tmp_path, story, "scheduler killed: the next job ends")
    assert [sample.seconds for sample in found.samples] == [61.0]


# --- a shard is away


def _call(story: Story, shard: str, outcome: str, at: float) -> None:
    buckets = BucketMap.even(["s0", "s1", "s2"])
    keys = (f"key-{number}" for number in range(1000))
    key = next(key for key in keys if buckets.shard_of(bucket_for_key("blue", key)) == shard)
    story.tell(f"{shard}-{at}", outcome, key=key, begin=BEGAN + at, end=BEGAN + at)


@pytest.mark.parametrize(("outcome", "met"), [("ok", True), ("unknown", False), ("fail", False)])
def test_calls_for_other_shards_may_not_fail(tmp_path: Path, outcome: str, met: bool) -> None:
    story = Story()
    _strike(story, "stop.shard", "shard-1", 1, 5)
    _call(story, "s0", "ok", 2)
    _call(story, "s2", outcome, 2)
    _call(story, "s1", "unknown", 2)  # its own may
    _call(story, "s2", "fail", 6)  # not that shard's doing
    found = _found(tmp_path, story, ELSEWHERE)
    assert len(found.samples) == 2
    assert found.to_json()["met"] is met


def test_calls_for_a_shard_that_is_away_too_or_just_back_may_fail(tmp_path: Path) -> None:
    story = Story()
    _strike(story, "kill.shard", "shard-2", 1, 4)
    _strike(story, "stop.shard", "shard-1", 3, 12)
    for at in (3.5, 4.5, 9):
        _call(story, "s2", "ok" if at == 9 else "fail", at)
    assert [sample.seconds for sample in _found(tmp_path, story, ELSEWHERE).samples] == [0.0]


def _opened(folder: Path, shard: str, *seconds: float) -> None:
    _told(folder, (shard, 0.0, "healthy"), *((shard, at, "away it hangs") for at in seconds))


def _told(folder: Path, *changes: tuple[str, float, str]) -> None:
    lines = [
        {
            "time": f"1970-01-01T00:16:{40 + at:06.3f}Z",
            "message": f"shard {shard} is {health}",
            "action": "shard_health",
            "shard": shard,
        }
        for shard, at, health in changes
    ]
    (folder / "logs").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "logs" / "orchestrator.log").write_text(text)


def test_a_breaker_is_timed_by_the_log_of_its_orchestrator(tmp_path: Path) -> None:
    story = Story()
    _strike(story, "stop.shard", "shard-1", 1, 9)
    _opened(tmp_path, "s1", 0.5, 2.5)
    assert [one.seconds for one in _found(tmp_path, story, BREAKER).samples] == [1.5]


def test_a_breaker_has_its_time_from_when_the_fault_was_done(tmp_path: Path) -> None:
    story = Story()
    fault = _strike(story, "stop.shard", "shard-1", 1, 9)
    fault["struck"] = BEGAN + 1.75
    _opened(tmp_path, "s1", 2.5)
    assert [one.seconds for one in _found(tmp_path, story, BREAKER).samples] == [0.75]


def test_a_breaker_that_was_open_already_is_no_sample(tmp_path: Path) -> None:
    story = Story()
    _strike(story, "stop.shard", "shard-1", 1, 9)
    _opened(tmp_path, "s1", 0.5)
    assert not [one for one in measure(tmp_path, story.evidence) if one.name == BREAKER]


def test_a_breaker_that_never_opened_is_late(tmp_path: Path) -> None:
    story = Story()
    _strike(story, "stop.shard", "shard-1", 1, 9)
    _told(tmp_path, ("s1", 0.0, "healthy"), ("s0", 2.0, "away"))
    found = _found(tmp_path, story, BREAKER)
    assert [sample.seconds for sample in found.samples] == [8.0]
    assert not found.to_json()["met"]


def test_a_shard_that_is_back_at_once_need_not_be_noticed(tmp_path: Path) -> None:
    story = Story()
    _strike(story, "kill.shard", "shard-1", 1, 2)
    _opened(tmp_path, "s0", 2)
    assert not [one for one in measure(tmp_path, story.evidence) if one.name == BREAKER]


def test_calls_that_ask_several_shards_or_another_say_nothing_about_one(tmp_path: Path) -> None:
    story = Story()
    _strike(story, "stop.shard", "shard-1", 1, 5)
    for at in (2, 2.5, 3, 4):
        _call(story, "s2", "fail", at)
    story.evidence.history[0] |= {"kind": "tree"}
    story.evidence.history[1] |= {"kind": "steps", "parents": [["ref", "run"]]}
    story.evidence.history[2] |= {"unique": "k"}
    assert len(_found(tmp_path, story, ELSEWHERE).samples) == 1


def test_jobs_that_wait_for_each_other_say_nothing_about_recovery(tmp_path: Path) -> None:
    story = Story()
    for name in ("a", "b", "c"):
        story.job(name, LOST)
    story.change("b", type=LIMITED)
    story.change("c", type=LANE)
    assert len(_found(tmp_path, story, SWEPT).samples) == 1
