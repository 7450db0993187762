"""Attempts to fool the checker: violations that lie where nobody looks, runs that prove nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from services.mesh.testing.faults import FaultProxy, Link
from tests.chaos import __main__ as command
from tests.chaos.checker import check
from tests.chaos.evidence import FILES, Evidence
from tests.chaos.ledger import digest
from tests.chaos.links import Links
from tests.chaos.plan import Fault
from tests.chaos.run import Run
from tests.chaos.strikes import Strikes
from tests.unit.chaos.story import BEGAN, RESCUED, Story

Break = Callable[[Story], object]
PAUSED = {"op": "schedule.pause", "name": "ticks", "begin": 1005.0, "end": 1005.1}


@pytest.fixture
def story() -> Story:
    """One job of each client, a schedule of two nominal times, a watcher of everything."""
    story = Story()
    story.job("a")
    story.job("b", RESCUED)
    history = story.evidence.history
    history.append({"op": "schedule.create", "name": "ticks", "outcome": "ok"})
    history.append({**PAUSED, "outcome": "ok"})
    schedule = {"id": "s", "name": "ticks", "namespace": "blue", "created": 1000.5, "missed": 0}
    story.evidence.schedules.append({**schedule, "paused": True})
    for time in (1001, 1002):
        story.job(f"t{time}")
        story.change(f"t{time}", schedule="s", nominal=float(time), ref="")
        history.pop()
    events = story.evidence.events.items()
    story.watch("all", *[(job, e.version, e.state) for job, line in events for e in line])
    return story


def found(story: Story) -> set[tuple[str, str]]:
    return {(one.invariant, one.counts_as) for one in check(story.evidence).violations}


def test_a_good_history_passes(story: Story) -> None:
    assert check(story.evidence).violations == []
    assert check(story.evidence).word == "PASS"


def _event(job: str, version: int, **fields: Any) -> Break:
    def broken(story: Story) -> None:
        events = story.evidence.events[job]
        events[version - 1] = events[version - 1]._replace(**fields)

    return broken


def _told(*items: tuple[str, int, int]) -> Break:
    return lambda s: s.evidence.watches.append({"watcher": "all", "at": 3.0, "told": list(items)})


def _listed(*jobs: str, **fields: Any) -> Break:
    said = {"lot": "lot", "jobs": list(jobs), "partial": False, "namespace": "blue", **fields}
    return lambda s: s.op("list", "a", **said)


def _lost_tick(story: Story) -> None:
    story.job("t", ((1, 1, 0), (2, 2, 1), (5, 9, 1)))
    story.change("t", schedule="s", nominal=1002.0, ref="")


def _early_expiry(story: Story) -> None:
    story.job("x", ((1, 1, 0), (7, 11, 0)), expires=True, begin=BEGAN, expire_after=9.0)


def _tick(**fields: Any) -> Break:
    return lambda s: s.change("t1002", **fields)


BROKEN: dict[str, tuple[Break, tuple[str, str]]] = {
    "a schedule that was created is gone, with its jobs": (
        lambda s: [s.evidence.schedules.clear(), _drop(s, "t1001", "t1002")],
        ("I13", "lost"),
    ),
    "a schedule is gone, and its jobs are there": (
        lambda s: s.evidence.schedules.clear(),
        ("I13", "lost"),
    ),
    "a schedule is there twice": (
        lambda s: s.evidence.schedules.append({**s.evidence.schedules[0], "id": "s2"}),
        ("I13", "twins"),
    ),
    "a paused schedule is not": (
        lambda s: s.evidence.schedules[0].update(paused=False),
        ("I13", "other"),
    ),
    "a job for no nominal time": (_tick(nominal=1002.4), ("I13", "twins")),
    "a job after the pause": (_tick(nominal=1010.0), ("I13", "twins")),
    "a job of a schedule without a nominal time": (_tick(nominal=None), ("I13", "twins")),
    "a job of a schedule in another namespace": (_tick(namespace="red"), ("I19", "other")),
    "a job of a schedule failed by one lost worker": (_lost_tick, ("I12", "lost")),
    "failed by lost workers with attempts left": (
        lambda s: s.job("x", ((1, 1, 0), *_losses(3), (2, 2, 4), (5, 9, 4)), attempts=3),
        ("I12", "lost"),
    ),
    "a watcher was told of a job that never was": (_told(("ghost", 1, 1)), ("I16", "gaps")),
    "a watcher was told of another state": (
        lambda s: _retell(s, ("a", 3, 3), ("a", 3, 1)),
        ("I16", "gaps"),
    ),
    "a list holds a job of somebody else": (
        lambda s: [s.job("x", lot="other"), _listed("a", "b", "x")(s)],
        ("I18", "other"),
    ),
    "a list holds a job that nobody has": (_listed("a", "b", "ghost"), ("I19", "other")),
    "a list holds a job twice": (_listed("a", "b", "b"), ("I18", "gaps")),
    "a partial list holds a job of another namespace": (
        lambda s: [s.change("b", namespace="red"), _listed("b", partial=True)(s)],
        ("I19", "other"),
    ),
    "a cancel did not find what was acknowledged": (
        lambda s: s.op("cancel", "a", outcome="fail"),
        ("I17", "lost"),
    ),
    "a read after a cancel does not know of it": (
        lambda s: [
            s.op("cancel", "a", cancelled=False, state=4, version=4),
            s.op("get", "a", version=3),
        ],
        ("I17", "gaps"),
    ),
    "a handler began before its claim": (_event("a", 2, time=5000.0), ("I15", "other")),
    "a dispatch ran that was never made": (lambda s: s.write("S a 0"), ("I15", "other")),
    "an attempt was counted otherwise than it ran": (_event("b", 5, attempt=2), ("I12", "other")),
    "something else was accepted under its key": (
        lambda s: s.op("conflict", "a", refused=False, holder="a"),
        ("I2", "twins"),
    ),
    "its key was refused as that of another job": (
        lambda s: s.op("conflict", "a", refused=True, holder="b"),
        ("I2", "other"),
    ),
    "it ran with the content that was refused under its key": (
        lambda s: [
            s.job("x", key="k", ledger="S x 1 input-other\nE x 1 done"),
            s.change("x", key="k"),
            s.op("conflict", "x", refused=True, holder="x"),
        ],
        ("I8", "double"),
    ),
    "its key was lost": (lambda s: s.job("x", key="k"), ("I2", "other")),
    "it is of another type": (lambda s: s.job("x", type="nap"), ("I2", "other")),
    "it ran with the input of another job": (
        lambda s: s.job("x", ledger="S x 1 input-a\nE x 1 done"),
        ("I8", "double"),
    ),
    "an attempt that did not commit ran with the input of another job": (
        lambda s: s.job("x", RESCUED, ledger="S x 1 input-a\nS x 2\nE x 2 done"),
        ("I8", "double"),
    ),
    "a handler does not say what it was given": (
        lambda s: s.job("x", input="input", ledger="S x 1\nE x 1 done"),
        ("I8", "double"),
    ),
    "a job of a schedule ran with the input of another": (
        lambda s: s.evidence.history[2].update(input="input-of-ticks"),
        ("I8", "double"),
    ),
    "its input was cut short": (
        lambda s: [s.change("a", input_ref=_INPUT), _store(s, role="input", size=3)],
        ("I26", "lost"),
    ),
    "its input is only among the outputs": (
        lambda s: [s.change("a", input_ref=_INPUT), _store(s, role="output", size=4)],
        ("I26", "lost"),
    ),
    "due before the time that was asked for": (
        lambda s: s.job("x", begin=BEGAN, delay=5.0),
        ("I10", "other"),
    ),
    "expired before its time": (_early_expiry, ("I10", "lost")),
    "open for too long, and ended during the dump": (
        lambda s: setattr(s.evidence, "unsettled", 2),
        ("I22", "stuck"),
    ),
    "a service that had ended was struck, and started again": (
        lambda s: s.evidence.faults.append({"kind": "kill.nats", "found_dead": ["nats"]}),
        ("I28", "other"),
    ),
    "a service did not survive a pause, and was started again": (
        lambda s: s.evidence.faults.append({"kind": "stop.nats", "detail": {"ended": ["nats"]}}),
        ("I28", "other"),
    ),
}


_INPUT = {"key": "k", "size": 4, "sha256": "aa"}


def _store(story: Story, **said: Any) -> None:
    story.evidence.objects["k"] = {"key": "k", **said}


def test_a_key_that_refuses_other_content_is_fine(story: Story) -> None:
    story.op("conflict", "a", refused=True, holder="a")
    story.op("conflict", "a", outcome="unknown", refused=False, holder=None)
    assert found(story) == set()


def test_a_look_that_began_before_another_one_ended_may_be_older(story: Story) -> None:
    story.op("get", "a", version=4, begin=BEGAN, end=BEGAN + 1)
    story.op("get", "a", version=3, begin=BEGAN + 0.9, end=BEGAN + 2)
    assert found(story) == set()
    story.op("get", "a", version=3, begin=BEGAN + 1.1, end=BEGAN + 3)
    assert found(story) == {("I17", "gaps")}


def test_a_large_input_that_is_there_is_fine(story: Story) -> None:
    story.change("a", input_ref=_INPUT)
    _store(story, role="input", size=4)
    assert found(story) == set()


def _losses(many: int) -> list[tuple[int, int, int]]:
    return [step for n in range(1, many + 1) for step in ((2, 2, n), (3, 3, n), (1, 9, n))]


def _drop(story: Story, *jobs: str) -> None:
    evidence = story.evidence
    evidence.rows[:] = [row for row in evidence.rows if row.id not in jobs]
    for job in jobs:
        del evidence.events[job], evidence.ledger.runs[job]
    told = evidence.watches[-1]["told"]
    told[:] = [item for item in told if item[0] not in jobs]


def _retell(story: Story, old: tuple[str, int, int], new: tuple[str, int, int]) -> None:
    told = story.evidence.watches[-1]["told"]
    told[told.index(old)] = new


@pytest.mark.parametrize("name", BROKEN)
def test_it_is_not_fooled(name: str, story: Story) -> None:
    break_it, expected = BROKEN[name]
    break_it(story)
    assert expected in found(story)


# --- runs that prove nothing


def test_a_folder_without_a_run_proves_nothing(tmp_path: Path) -> None:
    verdict = check(Evidence.read(tmp_path / "nothing"))
    assert verdict.exit_code == 2
    assert len(verdict.invalid) == len(FILES)


def test_a_dump_that_is_cut_short_proves_nothing(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}" if name.endswith(".json") else "")
    (tmp_path / "dump" / "locks.json").write_text("[]")
    assert Evidence.read(tmp_path).missing == []
    (tmp_path / "dump" / "objects.jsonl").write_text('{"key": "whole"}\n{"key": "to')
    assert check(Evidence.read(tmp_path)).invalid == ["dump/objects.jsonl is cut short"]


@pytest.mark.parametrize(
    "detail", [{"met": 0}, {"dropped": 0}, {"repeated": 0}, {"leases": 0}, {"rows": 0}]
)
def test_a_fault_that_met_nothing_has_not_fired(story: Story, detail: dict[str, int]) -> None:
    fault = {"kind": "hold.link", "in_flight": 3, "detail": detail}
    story.evidence.plan, story.evidence.faults = {"kinds": ["hold.link"]}, [fault]
    assert check(story.evidence).word == "INVALID"
    story.evidence.faults.append({**fault, "detail": dict.fromkeys(detail, 1)})
    assert check(story.evidence).word == "PASS"


def test_work_that_was_never_acknowledged_proves_nothing(story: Story) -> None:
    story.tell("x", "unknown", job="", kind="large")
    assert check(story.evidence).invalid == ["enqueue of large: none was answered in full"]


def test_handlers_that_tell_nothing_of_their_inputs_prove_nothing(story: Story) -> None:
    story.evidence.plan = {"shards": 1}
    for op in story.evidence.history:
        op.pop("input", None)
    for runs in story.evidence.ledger.runs.values():
        for run in runs.values():
            run.input = ""
    assert check(story.evidence).invalid == ["no handler told what it was given"]


def test_an_input_comes_down_to_the_same_on_both_ends() -> None:
    sent = {"ledger": "/tmp/effects.log", "tag": "r1", "seconds": 0.1}
    got = json.loads(json.dumps(sent)) | {"fails": 0, "padding": ""}
    assert digest(sent) == digest(got)
    assert digest(sent) != digest({**sent, "tag": "r2"})


def test_a_shard_without_jobs_proves_nothing(story: Story) -> None:
    story.evidence.plan = {"shards": 2}
    assert check(story.evidence).word == "INVALID"
    story.change("a", shard="s1")
    assert check(story.evidence).word == "PASS"


def test_a_run_that_nobody_watched_proves_nothing(story: Story) -> None:
    story.evidence.plan = {"shards": 1}
    story.evidence.watches.clear()
    assert check(story.evidence).invalid == ["nobody watched"]


def test_a_watcher_that_never_was_live_proves_nothing(story: Story) -> None:
    story.evidence.watches = [line for line in story.evidence.watches if "opened" in line]
    assert check(story.evidence).invalid == ["1 watchers never were live"]


# --- the command


class _Stuck:
    """A run that does not come to its end."""

    def __init__(self, is_healed: bool) -> None:
        self.is_healed = is_healed

    async def go(self) -> None:
        raise TimeoutError


@pytest.mark.parametrize(("is_healed", "code"), [(False, 2), (True, 1)])
def test_a_mesh_that_does_not_recover_fails(is_healed: bool, code: int) -> None:
    assert command.go(cast(Run, _Stuck(is_healed)), 7) == code


@pytest.mark.parametrize(("codes", "expected"), [([1, 0], 1), ([2, 1], 1), ([2, 0], 0), ([0], 0)])
def test_only_a_run_that_proved_nothing_is_tried_again(
    codes: list[int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = argparse.Namespace(tries=2, folder=None)
    answers = iter(codes)
    monkeypatch.setattr(command, "_arguments", lambda: asked)
    monkeypatch.setattr(command, "once", lambda asked: next(answers))
    assert command.main() == expected


def test_a_second_try_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = argparse.Namespace(tries=2, folder=Path("runs/mine"))
    seen: list[str] = []

    def once(asked: argparse.Namespace) -> int:
        seen.append(str(asked.folder))
        return 2

    monkeypatch.setattr(command, "_arguments", lambda: asked)
    monkeypatch.setattr(command, "once", once)
    assert command.main() == 2
    assert seen == ["runs/mine", "runs/mine-again"]


def test_a_folder_that_holds_a_run_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text("{}")
    argv = ["chaos", "--quick", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", argv)
    assert command.main() == 2


# --- links

_HELD = ("hold.link", "enqueue>orchestrator")


class _NoCrew:
    names: tuple[str, ...] = ()


async def test_a_link_counts_what_its_fault_met() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, FaultProxy(server.sockets[0].getsockname()[1]) as link:
        delay = link.lay(Link.DELAY)
        assert delay.met == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        assert delay.met == 2
        assert link.lay(Link.CUT).met == 1
        writer.close()
        await asyncio.sleep(0.05)


def _breaking(number: int, kind: str, target: str) -> Fault:
    return Fault(number, 0.0, kind, target, 1.0)


@pytest.mark.parametrize(
    "other", [_breaking(1, "partition.orchestrator", "orchestrator"), _breaking(1, *_HELD)]
)
async def test_two_faults_of_one_link_do_not_undo_each_other(other: Fault) -> None:
    """Both hold it: when the first one ends, it is still held."""
    links, nobody = Links(), cast(Any, None)
    links._proxies["enqueue", "orchestrator"] = link = FaultProxy(1)
    link.last_met = asyncio.get_running_loop().time()
    strikes = Strikes(nobody, cast(Any, _NoCrew()), links, nobody)
    first = strikes.strike(_breaking(0, *_HELD), {})
    second = strikes.strike(other, {})
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert [layer.link for layer in link._layers] == [Link.HOLD]
    with suppress(AttributeError):  # a partition looks after its unit, of which there is none here
        await second.__aexit__(None, None, None)
    assert link._layers == []


async def test_an_idle_link_is_not_struck() -> None:
    links, now = Links(), asyncio.get_running_loop().time()
    for callee, idle in (("etcd", 60.0), ("etcd-2", 1.0), ("nats", 0.0)):
        links._proxies["worker-1", callee] = FaultProxy(1)
        links["worker-1", callee].last_met = now - idle
    nobody = cast(Any, None)
    strikes = Strikes(nobody, nobody, links, nobody)
    assert strikes._in_use(("worker-1", "etcd")) == ("worker-1", "nats")
    assert strikes._in_use(("worker-1", "etcd-2")) == ("worker-1", "etcd-2")
