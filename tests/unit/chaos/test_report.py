"""What a run says about itself, from evidence made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.recovery import measure, percentile
from tests.chaos.report import summary, write_report
from tests.unit.chaos.story import BEGAN, RESCUED, Story


def _struck(story: Story) -> None:
    fault = {"number": 0, "kind": "kill.worker", "target": "worker-1", "in_flight": 2}
    fault |= {"began": BEGAN + 3.5, "until": BEGAN + 4, "healed": BEGAN + 5}
    story.evidence.faults.append({**fault, "detail": {"worker_id": "w", "pid": 6}})
    story.evidence.plan = {"seed": 7, "kinds": ["kill.worker"]}
    for op in story.evidence.history:
        op |= {"begin": BEGAN, "end": BEGAN + 0.1}


def test_the_last_line_has_every_figure() -> None:
    story = Story()
    story.job("a")
    story.job("z", RESCUED, ledger="S z 1\nS z 2\nE z 1 done\nE z 2 done")
    _struck(story)
    line = summary(story.evidence, check(story.evidence))
    assert line == (
        "chaos: PASS seed=7 jobs=2 faults=1 kinds=1 lost=0 double=0 twins=0 stuck=0 gaps=0 "
        "zombies=1 fenced=1"
    )


def test_a_rescue_is_measured_from_the_kill_to_the_next_start(tmp_path: Path) -> None:
    story = Story()
    story.job("z", RESCUED, ledger="S z 1\nS z 2\nE z 2 done")
    _struck(story)
    (first, *_) = measure(tmp_path, story.evidence)
    assert first.name.startswith("worker killed")
    assert [sample.alone for sample in first.samples] == [True]
    began = min(run.began for run in story.evidence.ledger.of("z").values())
    assert first.samples[0].seconds == began - (BEGAN + 3.5)


def test_the_folder_gets_a_picture_that_needs_nothing_else(tmp_path: Path) -> None:
    story = Story()
    story.job("a")
    story.job("stuck", ((1, 1, 0),))
    _struck(story)
    verdict = check(story.evidence)
    write_report(tmp_path, story.evidence, verdict)
    page = (tmp_path / "timeline.html").read_text()
    assert "http://www.w3.org/2000/svg" in re.findall(r"https?://[^\"']+", page)
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    data = re.search(r"const D=(.*);\n", page)
    assert data is not None
    told = json.loads(data[1])
    assert told["lanes"][0]["unit"] == "worker-1"
    assert told["word"] == "FAIL"
    assert "still in state 1" in (tmp_path / "job-stuck.html").read_text()
    assert json.loads((tmp_path / "result.json").read_text())["violations"]


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50.0, 99.0)
    assert percentile([], 0.5) is None
